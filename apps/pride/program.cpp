// The program `pride`: parses the command line and turns exceptions into exit codes.
// SPDX-License-Identifier: Apache-2.0
//
// Exit codes: 0 done, 1 the command failed ("pride: error: ..." on stderr), 2 wrong usage.
#include <poll.h>
#include <unistd.h>

#include <CLI/Formatter.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "pride/error.h"
#include "program.h"
#include "train/build_info.h"
#include "train_names.h"

namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;

int fail(const std::string& why) {
  std::cout.flush();
  std::cerr << "pride: error: " << why << std::endl;
  return kFailed;
}

// True if stdout is a pipe whose reader has gone, as in `pride info | head -1`.
bool reader_gone() {
  pollfd out{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

// Output that was not written is a failure, unless nobody wants it any more.
int finish(int code) {
  const bool written = !!std::cout.flush() && std::fflush(stdout) == 0 && !std::ferror(stdout);
  if (written || reader_gone()) return code;
  return code != 0 ? code : fail("cannot write to standard output");
}

// CLI11 writes "--overlap,--no-overlap{false}" for a flag with a negative form.
struct HelpFormatter : CLI::Formatter {
  std::string make_option_name(const CLI::Option* option, bool positional) const override {
    std::string name = Formatter::make_option_name(option, positional);
    if (const auto at = name.find("{false}"); at != name.npos) name.erase(at, 7);
    return name;
  }
};

bool is_subcommand(const CLI::App& app, const std::string& name) {
  const auto all = app.get_subcommands({});
  return std::any_of(all.begin(), all.end(),
                     [&](const CLI::App* known) { return known->get_name() == name; });
}

// CLI11 would only say that a subcommand is required.
int unknown_subcommand(const CLI::App& app, const std::string& name) {
  std::cerr << "unknown subcommand \"" << name << "\"; there are";
  for (const CLI::App* known : app.get_subcommands({})) std::cerr << ' ' << known->get_name();
  std::cerr << "\nRun with --help for more information.\n";
  return kUsage;
}

// Of "--steps= --quiet" CLI11 would make the number of steps "--quiet".
std::string flag_without_value(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--") break;
    if (word.starts_with("--") && word.find('=') + 1 == word.size()) return word;
  }
  return "";
}

int parse(CLI::App& app, int argc, char** argv) {
  if (argc > 1 && argv[1][0] != '-' && !is_subcommand(app, argv[1])) {
    return unknown_subcommand(app, argv[1]);
  }
  if (const std::string word = flag_without_value(argc, argv); !word.empty()) {
    std::cerr << word << ": there is nothing after the \"=\"; an empty value is a word of its own: "
              << word.substr(0, word.size() - 1)
              << " \"\"\nRun with --help for more information.\n";
    return kUsage;
  }
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : kUsage;
  }
}

#if PRIDE_LISTS_ONLY
bool is_rank_of_a_job() {
  constexpr std::array kNames = {"RANK",     "OMPI_COMM_WORLD_SIZE", "PMIX_RANK",     "PMI_RANK",
                                 "PMI_SIZE", "MPI_LOCALNRANKS",      "PMI_LOCAL_RANK"};
  return std::ranges::any_of(kNames, [](const char* name) { return std::getenv(name) != nullptr; });
}

// Of a network and a model on paper. Methods with matrices are measured, with one thread of BLAS.
bool is_word_of_a_plan_on_paper(const std::string& word) {
  constexpr std::array kFlags = {"--params", "--backward", "--bandwidth", "--latency", "--message",
                                 "--world",  "--methods",  "--cores",     "--json",    "--svg"};
  if (word.find("muon") != word.npos) return false;
  return !word.starts_with('-') || std::ranges::count(kFlags, word.substr(0, word.find('='))) > 0;
}

// Commands of this program; all others are pride-torch's, and the ranks of a job are, too.
bool is_mine(const std::vector<std::string>& words) {
  const auto has = [&](const std::string& flag) {
    return std::ranges::any_of(words, [&](const std::string& word) {
      return word == flag || word.starts_with(flag + "=");
    });
  };
  if (words.empty() || words[0].starts_with('-')) return !has("--help-all");
  if (words[0] == "plan") {
    return has("--params") && has("--backward") && has("--bandwidth") && !is_rank_of_a_job() &&
           std::ranges::all_of(words, is_word_of_a_plan_on_paper);
  }
  return words[0] == "methods" || words[0] == "report" || words[0] == "tokenize";
}

// Becomes pride-torch, which lies beside this program or in libexec/pride.
void become_torch(char** argv) {
  const std::filesystem::path here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::filesystem::path beside = here / "pride-torch";
  const std::filesystem::path installed =
      here.parent_path() / PRIDE_LIBEXEC / "pride" / "pride-torch";
  for (const auto& file : {beside, installed}) execv(file.c_str(), argv);
  throw pride::Error(pride::concat("`pride ", argv[1], "` needs the program pride-torch, at ",
                                   beside.string(), " or ", installed.string()));
}
#endif

int run(int argc, char** argv) {
#if PRIDE_LISTS_ONLY
  if (!is_mine({argv + 1, argv + argc})) become_torch(argv);
#endif
  CLI::App app("Data-parallel training with about one bit per parameter on the wire.", "pride");
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_version_flag("--version", std::string("pride ") + pride::app::kVersion);
  app.set_help_all_flag("--help-all", "Print the help of all subcommands and exit");
  app.require_subcommand(1);
  pride::app::add_train_command(app);
  pride::app::add_compare_command(app);
  pride::app::add_sweep_command(app);
  pride::app::add_replay_command(app);
  pride::app::add_tokenize_command(app);
  pride::app::add_generate_command(app);
  pride::app::add_evaluate_command(app);
  pride::app::add_report_command(app);
  pride::app::add_methods_command(app);
  pride::app::add_bench_command(app);
  pride::app::add_plan_command(app);
  pride::app::add_info_command(app);
  pride::app::add_manual_commands(app);
  return parse(app, argc, argv);
}

}  // namespace

int pride_main(int argc, char** argv) {
  try {
    return finish(run(argc, argv));
  } catch (const std::exception& e) {
    return fail(e.what());
  }
}
