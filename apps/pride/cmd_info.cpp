// `pride info`: what this build is, what it can do here, and what each method costs.
// SPDX-License-Identifier: Apache-2.0
#include <cinttypes>
#include <cstdio>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "blas_info.h"
#include "build_info.h"
#include "commands.h"
#include "data/text.h"
#include "pride/cpu.h"
#include "pride/error.h"
#include "pride/registry.h"

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

Json describe_method(const std::string& name, int workers) {
  const MethodInfo info = method_info(name, workers);
  Json options = Json::array();
  for (const MethodOption& option : info.options) {
    options.push_back(
        {{"name", option.name}, {"default", option.default_value}, {"help", option.help}});
  }
  return {{"name", info.name},
          {"title", info.title},
          {"source", info.source},
          {"bits_up", info.bits_up},
          {"bits_down", info.bits_down},
          {"state_floats", info.state_floats},
          {"defaults",
           {{"lr", info.default_lr},
            {"beta1", info.default_beta1},
            {"beta2", info.default_beta2},
            {"eps", info.default_eps},
            {"weight_decay", info.default_weight_decay}}},
          {"options", std::move(options)}};
}

// Null if there is none; a default text that cannot be read says why.
Json describe_default_text() {
  const auto folder = find_default_text();
  if (!folder) return nullptr;
  Json text = {{"path", folder->string()}};
  try {
    const TextCorpus corpus = load_default_text();
    char hash[17];
    std::snprintf(hash, sizeof hash, "%016" PRIx64, corpus.hash);
    text["files"] = corpus.n_files;
    text["train_bytes"] = corpus.train.size();
    text["valid_bytes"] = corpus.valid.size();
    text["hash"] = hash;
  } catch (const DataError& e) {
    text["error"] = e.what();
  }
  return text;
}

Json gather(int workers) {
  Json methods = Json::array();
  for (const std::string& name : method_names()) methods.push_back(describe_method(name, workers));
  return {{"version", kVersion},
          {"git", *kGitDescribe == '\0' ? Json(nullptr) : Json(kGitDescribe)},
          {"compiler", kCompiler},
          {"build_type", kBuildType},
          {"isa", {{"active", active_isa()}, {"available", available_isas()}}},
          {"transports", {{"threads", true}, {"mpi", mpi_version()}}},
          {"libtorch", libtorch_version()},
          {"blas", blas_in_use()},
          {"default_text", describe_default_text()},
          {"workers", workers},
          {"methods", std::move(methods)}};
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

void print_build(const Json& info) {
  line("pride", info["version"].get<std::string>() +
                    (info["git"].is_null() ? "" : " (" + info["git"].get<std::string>() + ")"));
  line("compiler",
       concat(info["compiler"].get<std::string>(), ", ", info["build_type"].get<std::string>()));
  std::string sets;
  for (const Json& name : info["isa"]["available"]) sets += " " + name.get<std::string>();
  line("instructions", concat(info["isa"]["active"].get<std::string>(), " of", sets));
  const Json& mpi = info["transports"]["mpi"];
  line("transports", concat("threads", mpi.is_null() ? "" : ", mpi"));
  line("MPI", text_or(mpi, "not built"));
  line("libtorch", text_or(info["libtorch"], "not built"));
  line("BLAS", info["blas"].get<std::string>());
  line("default text", default_text_line(info["default_text"]));
}

void print_method(const Json& method) {
  std::cout << "\n  " << method["name"].get<std::string>() << ": "
            << method["title"].get<std::string>() << '\n';
  std::cout << "    source   " << method["source"].get<std::string>() << '\n';
  std::cout << "    cost     " << method["bits_up"].get<double>() << " bits up, "
            << method["bits_down"].get<double>() << " bits down per coordinate\n";
  std::cout << "    state    " << method["state_floats"] << " floats per coordinate\n    defaults";
  for (const auto& [name, value] : method["defaults"].items()) {
    std::cout << ' ' << name << '=' << value.get<double>();
  }
  std::cout << '\n';
  for (const Json& option : method["options"]) {
    std::cout << "    option   " << option["name"].get<std::string>() << '='
              << option["default"].get<std::string>() << "  " << option["help"].get<std::string>()
              << '\n';
  }
}

void run(int workers, bool json) {
  const Json info = gather(workers);
  if (json) {
    // text of other libraries may hold anything; it is printed, never trusted
    std::cout << info.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
    return;
  }
  print_build(info);
  std::cout << "\nmethods, with " << workers << " workers:\n";
  for (const Json& method : info["methods"]) print_method(method);
}

struct Arguments {
  int workers = 4;
  bool json = false;
};

}  // namespace

void add_info_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("info", "Say what this build is, what it can use here, and its methods");
  const auto args = std::make_shared<Arguments>();
  command->add_option("--workers", args->workers, "World size for the methods' costs")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  command->add_flag("--json", args->json, "Print JSON");
  command->callback([args] { run(args->workers, args->json); });
}

}  // namespace pride::app
