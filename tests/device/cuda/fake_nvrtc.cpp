// An NVRTC for tests: what it makes names the chip and the source's size, and it counts.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

namespace {

struct Program {
  std::string source, result, log;
};

std::atomic<int> compiled{0};

int give(const std::string& text, char* out) {
  std::memcpy(out, text.c_str(), text.size() + 1);
  return 0;
}

}  // namespace

extern "C" {

int fake_nvrtc_compiled() { return compiled; }

int nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 1;
  return 0;
}
int nvrtcGetNumSupportedArchs(int* n) {
  *n = 5;
  return 0;
}
int nvrtcGetSupportedArchs(int* all) {
  const int known[] = {75, 80, 90, 100, 101};
  std::copy(std::begin(known), std::end(known), all);
  return 0;
}
const char* nvrtcGetErrorString(int error) {
  return error == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR";
}
int nvrtcCreateProgram(void** program, const char* source, const char*, int, const char* const*,
                       const char* const*) {
  *program = new Program{.source = source, .result = {}, .log = {}};
  return 0;
}
int nvrtcDestroyProgram(void** program) {
  delete static_cast<Program*>(*program);
  return 0;
}
int nvrtcCompileProgram(void* handle, int n, const char* const* options) {
  ++compiled;
  auto& program = *static_cast<Program*>(handle);
  if (program.source.find("#error") != std::string::npos) {
    program.log = "a warning\nbodies.h(7): error: planned\n  the line\nbodies.h(8): error";
    return 6;
  }
  program.result = "fake";
  for (int i = 0; i < n; ++i) program.result += std::string(" ") + options[i];
  program.result += " " + std::to_string(program.source.size());
  return 0;
}
int nvrtcGetProgramLogSize(void* program, std::size_t* size) {
  *size = static_cast<Program*>(program)->log.size() + 1;
  return 0;
}
int nvrtcGetProgramLog(void* program, char* out) {
  return give(static_cast<Program*>(program)->log, out);
}
int nvrtcGetCUBINSize(void* program, std::size_t* size) {
  *size = static_cast<Program*>(program)->result.size() + 1;
  return 0;
}
int nvrtcGetCUBIN(void* program, char* out) {
  return give(static_cast<Program*>(program)->result, out);
}
int nvrtcGetPTXSize(void* program, std::size_t* size) { return nvrtcGetCUBINSize(program, size); }
int nvrtcGetPTX(void* program, char* out) { return nvrtcGetCUBIN(program, out); }

}  // extern "C"
