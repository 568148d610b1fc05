// `pride info`: this build, and what it can use on this machine.
// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "houses.h"
#include "pride/cpu.h"
#include "pride/device.h"
#include "pride/error.h"
#include "pride/registry.h"
#include "program/build_info.h"
#include "program/program.h"

#ifdef PRIDE_HAVE_MPI
#include <mpi.h>
#endif

namespace pride::app {
namespace {

using Json = nlohmann::ordered_json;

// What the lab's program can use; empty: it is not installed, or fails, which standard error says.
Json facts_of_lab() {
  const auto program = find_house(kLab);
  try {
    return program ? Json::parse(output_of(*program, "facts")) : Json::object();
  } catch (const std::exception& error) {
    std::cerr << "pride: warning: " << error.what() << std::endl;
    return Json::object();
  }
}

// The transports' versions; null: not in this build.
Json transports(const Json& lab) {
  Json all = {{"threads", true}, {"mpi", nullptr}, {"c10d", lab.value("c10d", Json(nullptr))}};
#ifdef PRIDE_HAVE_MPI
  // allowed before MPI_Init
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  // Open MPI counts the final NUL, MPICH writes a line for each build option: keep the first line
  const std::string whole = text;
  const std::string first = whole.substr(0, whole.find('\n'));
  all["mpi"] = first.substr(0, first.find_last_not_of(" ,\t\r") + 1);
#endif
  return all;
}

// Result of a loaded function `const char* name()`, or "".
std::string ask(const char* name) {
  using Function = const char* (*)();
  const auto function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  const char* text = function != nullptr ? function() : nullptr;
  return text != nullptr ? text : "";
}

std::string trimmed(std::string text) {
  text.erase(text.find_last_not_of(" \n") + 1);
  return text;
}

// The BLAS that this process has loaded, by functions of the loaded libraries: "OpenBLAS 0.3.21
// NO_AFFINITY USE64... core Haswell"; "unknown (FILE)" for a BLAS without such a function; "none"
// if no BLAS is loaded.
std::string blas_in_use() {
  if (const std::string config = ask("openblas_get_config"); !config.empty()) {
    return trimmed(config) + ", core " + ask("openblas_get_corename");
  }
  if (const std::string version = ask("bli_info_get_version_str"); !version.empty()) {
    return "BLIS " + version;
  }
  using Version = void (*)(char*, int);
  if (const auto mkl = reinterpret_cast<Version>(dlsym(RTLD_DEFAULT, "mkl_get_version_string"))) {
    char text[256] = {};
    mkl(text, sizeof text - 1);
    return trimmed(text);
  }
  Dl_info where{};
  if (void* sgemm = dlsym(RTLD_DEFAULT, "sgemm_"); sgemm != nullptr && dladdr(sgemm, &where) != 0) {
    return std::string("unknown (") + where.dli_fname + ")";
  }
  return "none";
}

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json describe_cuda(const CudaReport& report) {
  Json gpus = Json::array();
  for (const CudaGpu& gpu : report.gpus) {
    gpus.push_back({{"number", gpu.number},
                    {"name", gpu.name},
                    {"architecture", gpu.architecture},
                    {"bytes", gpu.bytes}});
  }
  return {{"gpus", gpus},
          {"driver", text_or_null(report.driver)},
          {"nvrtc", text_or_null(report.nvrtc)},
          {"cache", text_or_null(report.cache)},
          {"off", text_or_null(report.reason)},
          {"unchecked", text_or_null(report.unchecked)}};
}

Json describe_houses() {
  Json houses;
  for (const House* house : kHouses) {
    const auto program = find_house(*house);
    houses[house->program] = program ? Json(program->string()) : Json(nullptr);
  }
  return houses;
}

Json gather(const CudaReport& cuda) {
  const Json lab = facts_of_lab();
  return {{"version", kVersion},
          {"git", *kGitDescribe == '\0' ? Json(nullptr) : Json(kGitDescribe)},
          {"compiler", kCompiler},
          {"build_type", kBuildType},
          {"isa", {{"active", active_isa()}, {"available", available_isas()}}},
          {"programs", describe_houses()},
          {"transports", transports(lab)},
          {"libtorch", lab.value("libtorch", Json(nullptr))},
          {"blas", blas_in_use()},
          {"cuda", describe_cuda(cuda)},
          {"default_text", lab.value("default_text", Json(nullptr))},
          {"methods", method_names()}};
}

void line(const char* label, const std::string& value) {
  std::cout << std::left << std::setw(14) << label << value << '\n';
}

// A string, or a list as words separated by blanks.
std::string text_of(const Json& value, const char* otherwise = "not built") {
  if (value.is_null()) return otherwise;
  if (!value.is_array()) return value.get<std::string>();
  std::string text;
  for (const Json& word : value) text += (text.empty() ? "" : " ") + word.get<std::string>();
  return text;
}

std::string default_text_line(const Json& text) {
  if (text.is_null()) return "no (C++ standard library headers not found)";
  if (text.contains("error")) return concat("no (", text_of(text["error"]), ")");
  return concat("yes: ", text_of(text["path"]), ", ", text["files"].dump(), " files, ",
                text["train_bytes"].dump(), " + ", text["valid_bytes"].dump(), " bytes, hash ",
                text_of(text["hash"]));
}

void print_build(const Json& info, const CudaReport& cuda) {
  const Json &mpi = info["transports"]["mpi"], &c10d = info["transports"]["c10d"];
  const std::string git = text_of(info["git"], "");
  line("pride", text_of(info["version"]) + (git.empty() ? "" : " (" + git + ")"));
  line("compiler", concat(text_of(info["compiler"]), ", ", text_of(info["build_type"])));
  line("instructions",
       concat(text_of(info["isa"]["active"]), " of ", text_of(info["isa"]["available"])));
  line("transports",
       concat("threads", mpi.is_null() ? "" : ", mpi", c10d.is_null() ? "" : ", c10d (Gloo)"));
  line("MPI", text_of(mpi));
  for (const auto& [program, path] : info["programs"].items()) {
    line(program.c_str() + std::string_view("pride-").size(), text_of(path, "not installed"));
  }
  line("libtorch", text_of(info["libtorch"]));
  line("BLAS", text_of(info["blas"]));
  for (const auto& [label, value] : cuda.lines()) line(label.c_str(), value);
  line("default text", default_text_line(info["default_text"]));
  line("methods", concat(text_of(info["methods"]), " (`pride methods` lists them)"));
}

void run_info(bool& json) {
  const CudaReport cuda = cuda_report(true);
  const Json info = gather(cuda);
  if (json) {
    // texts of other libraries may not be UTF-8
    std::cout << info.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
    return;
  }
  print_build(info, cuda);
}

}  // namespace

void add_info(CLI::App& command) {
  command.add_flag("--json", arguments_of(command, run_info), "Print JSON");
}

}  // namespace pride::app
