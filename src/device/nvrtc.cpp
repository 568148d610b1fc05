// SPDX-License-Identifier: Apache-2.0
#include "device/nvrtc.h"

#include <algorithm>
#include <memory>

#include "pride/error.h"

namespace pride::cuda {
namespace {

template <typename Function>
void load_call(const Library& library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(library.get(symbol));
}

// NVRTC writes hundreds of lines for one fault.
std::string first_error(const std::string& log) {
  const std::size_t error = log.find("error");
  const std::size_t found = error == std::string::npos ? 0 : error;
  const std::size_t begin = log.rfind('\n', found) + 1;  // npos + 1 is 0
  return log.substr(begin, log.find('\n', found) - begin);
}

}  // namespace

std::string Target::option() const { return concat(ptx ? "compute_" : "sm_", architecture); }

Nvrtc::Nvrtc(const std::string& library) : library_(library) {
  load_call(library_, "nvrtcVersion", call_.version);
  load_call(library_, "nvrtcGetNumSupportedArchs", call_.n_architectures);
  load_call(library_, "nvrtcGetSupportedArchs", call_.architectures);
  load_call(library_, "nvrtcCreateProgram", call_.create);
  load_call(library_, "nvrtcDestroyProgram", call_.destroy);
  load_call(library_, "nvrtcCompileProgram", call_.compile);
  load_call(library_, "nvrtcGetErrorString", call_.error);
  load_call(library_, "nvrtcGetProgramLogSize", call_.log_size);
  load_call(library_, "nvrtcGetProgramLog", call_.log);
  load_call(library_, "nvrtcGetCUBINSize", call_.cubin_size);
  load_call(library_, "nvrtcGetCUBIN", call_.cubin);
  load_call(library_, "nvrtcGetPTXSize", call_.ptx_size);
  load_call(library_, "nvrtcGetPTX", call_.ptx);
  int major = 0, minor = 0;
  check(call_.version(&major, &minor), "nvrtcVersion");
  version_ = concat(major, ".", minor);
}

void Nvrtc::check(Result result, const char* call) const {
  PRIDE_CHECK(result == 0, path(), ": ", call, " failed: ", call_.error(result));
}

std::vector<int> Nvrtc::architectures() const {
  int count = 0;
  check(call_.n_architectures(&count), "nvrtcGetNumSupportedArchs");
  std::vector<int> known(static_cast<std::size_t>(count));
  check(call_.architectures(known.data()), "nvrtcGetSupportedArchs");
  std::ranges::sort(known);
  return known;
}

Target Nvrtc::target_of(int chip) const {
  std::vector<int> known = architectures();
  // sm_101 has become sm_110: to a driver its PTX is of a younger chip than sm_103
  if (chip != 101) std::erase(known, 101);
  const auto above = std::ranges::upper_bound(known, chip);
  PRIDE_CHECK(above != known.begin(), path(), ": NVRTC ", version_, " compiles for sm_",
              known.empty() ? 0 : known.front(), " and newer, this GPU is sm_", chip,
              "; install an older NVRTC, and name its file in PRIDE_NVRTC");
  const int newest = *std::prev(above);
  return {.architecture = newest, .ptx = newest != chip};
}

std::vector<std::string> Nvrtc::options(const Target& target) {
  // every operation is rounded, as on the host; lines of the source are for profilers
  return {"--gpu-architecture=" + target.option(),
          "--std=c++17",
          "--fmad=false",
          "--ftz=false",
          "--prec-div=true",
          "--prec-sqrt=true",
          "--generate-line-info"};
}

std::string Nvrtc::text_of(Program program, Size size, Text text) const {
  std::size_t bytes = 0;
  check(size(program, &bytes), "size of a result");
  std::string result(bytes, '\0');
  check(text(program, result.data()), "a result");
  return result;
}

std::string Nvrtc::compile(const std::string& source, const Target& target) const {
  Program program = nullptr;
  check(call_.create(&program, source.c_str(), "kernels", 0, nullptr, nullptr),
        "nvrtcCreateProgram");
  const auto destroy = [this](Program* p) { call_.destroy(p); };
  const std::unique_ptr<Program, decltype(destroy)> owner(&program, destroy);
  const std::vector<std::string> texts = options(target);
  std::vector<const char*> pointers;
  for (const std::string& text : texts) pointers.push_back(text.c_str());
  const Result result = call_.compile(program, static_cast<int>(pointers.size()), pointers.data());
  if (result != 0) {
    const std::string log = text_of(program, call_.log_size, call_.log).c_str();  // ends with a 0
    throw CompileFailure(concat(path(), ": NVRTC ", version_, " does not compile the kernels for ",
                                target.option(), ": ", call_.error(result), ", ", first_error(log)),
                         log);
  }
  return target.ptx ? text_of(program, call_.ptx_size, call_.ptx)
                    : text_of(program, call_.cubin_size, call_.cubin);
}

}  // namespace pride::cuda
