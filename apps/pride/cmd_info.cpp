// `pride info`: what this build is, and what it can use here.
// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "pride/cpu.h"
#include "pride/error.h"
#include "pride/registry.h"
#include "train/build_info.h"
#include "train/data/text.h"
#include "train/hex.h"
#include "train/process.h"

#ifdef PRIDE_HAVE_MPI
#include <mpi.h>
#endif

namespace pride::app {
namespace {

using Json = nlohmann::ordered_json;

Json mpi_version() {
#ifdef PRIDE_HAVE_MPI
  // allowed before MPI_Init
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  // Open MPI counts the final NUL, MPICH writes a line for each build option: keep the first line
  const std::string whole = text;
  const std::string first = whole.substr(0, whole.find('\n'));
  return first.substr(0, first.find_last_not_of(" ,\t\r") + 1);
#else
  return nullptr;
#endif
}

Json libtorch_version() {
#ifdef PRIDE_HAVE_TORCH
  return torch_version();
#else
  return nullptr;
#endif
}

// Null if there is none; a default text that cannot be read says why.
Json describe_default_text() {
  const auto folder = find_default_text();
  if (!folder) return nullptr;
  Json text = {{"path", folder->string()}};
  try {
    const TextCorpus corpus = load_default_text();
    text["files"] = corpus.n_files;
    text["train_bytes"] = corpus.train.size();
    text["valid_bytes"] = corpus.valid.size();
    text["hash"] = hex16(corpus.hash);
  } catch (const DataError& e) {
    text["error"] = e.what();
  }
  return text;
}

Json c10d_engine() {
#ifdef PRIDE_HAVE_C10D
  return "gloo";
#else
  return nullptr;
#endif
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

// Which BLAS this process has loaded, asked of the loaded libraries themselves: pride itself calls
// none here. "OpenBLAS 0.3.21 NO_AFFINITY USE64... core Haswell"; "unknown (FILE)" for a BLAS that
// does not say its name; "none" if no BLAS is loaded.
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

Json gather() {
  return {{"version", kVersion},
          {"git", *kGitDescribe == '\0' ? Json(nullptr) : Json(kGitDescribe)},
          {"compiler", kCompiler},
          {"build_type", kBuildType},
          {"isa", {{"active", active_isa()}, {"available", available_isas()}}},
          {"transports", {{"threads", true}, {"mpi", mpi_version()}, {"c10d", c10d_engine()}}},
          {"libtorch", libtorch_version()},
          {"blas", blas_in_use()},
          {"default_text", describe_default_text()},
          {"methods", method_names()}};
}

void line(const char* label, const std::string& value) {
  std::cout << std::left << std::setw(14) << label << value << '\n';
}

std::string text_or(const Json& value, const char* otherwise) {
  return value.is_null() ? otherwise : value.get<std::string>();
}

std::string default_text_line(const Json& text) {
  if (text.is_null()) return "no (C++ standard library headers not found)";
  const auto path = text["path"].get<std::string>();
  if (text.contains("error")) return concat("no (", text["error"].get<std::string>(), ")");
  return concat("yes: ", path, ", ", text["files"], " files, ", text["train_bytes"], " + ",
                text["valid_bytes"], " bytes, hash ", text["hash"].get<std::string>());
}

// " one two three"
std::string words_of(const Json& words) {
  std::string text;
  for (const Json& word : words) text += " " + word.get<std::string>();
  return text;
}

void print_build(const Json& info) {
  line("pride", info["version"].get<std::string>() +
                    (info["git"].is_null() ? "" : " (" + info["git"].get<std::string>() + ")"));
  line("compiler",
       concat(info["compiler"].get<std::string>(), ", ", info["build_type"].get<std::string>()));
  line("instructions",
       concat(info["isa"]["active"].get<std::string>(), " of", words_of(info["isa"]["available"])));
  const Json& mpi = info["transports"]["mpi"];
  const Json& c10d = info["transports"]["c10d"];
  line("transports",
       concat("threads", mpi.is_null() ? "" : ", mpi", c10d.is_null() ? "" : ", c10d (Gloo)"));
  line("MPI", text_or(mpi, "not built"));
  line("libtorch", text_or(info["libtorch"], "not built"));
  line("BLAS", info["blas"].get<std::string>());
  line("default text", default_text_line(info["default_text"]));
  line("methods", concat(words_of(info["methods"]).substr(1), " (`pride methods` says more)"));
}

void run(bool& json) {
  const Json info = gather();
  if (json) {
    // text of other libraries may hold anything; it is printed, never trusted
    std::cout << info.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
    return;
  }
  print_build(info);
}

}  // namespace

void add_info(CLI::App& command) {
  command.add_flag("--json", arguments_of(command, run), "Print JSON");
}

}  // namespace pride::app
