// The program `pride`: parses the command line and turns exceptions into exit codes.
// SPDX-License-Identifier: Apache-2.0
//
// Exit codes: 0 done, 1 the command failed ("pride: error: ..." on stderr), 2 wrong usage.
#include <poll.h>
#include <unistd.h>

#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "commands.h"
#include "pride/error.h"
#include "program.h"
#include "text/suggestion.h"
#include "train/build_info.h"
#include "world.h"

namespace {

char** main_arguments = nullptr;

constexpr int kFailed = 1;
constexpr int kUsage = 2;

// A function of commands.h if this program has it. Without libtorch there is no training. In a
// build with libtorch `pride` replaces itself by pride-torch for all but a few commands.
#if PRIDE_HAVE_TORCH
#define PRIDE_TORCH_HAS(add) pride::app::add
#else
#define PRIDE_TORCH_HAS(add) nullptr
#endif
#if PRIDE_HAVE_COORD
#define PRIDE_COORD_HAS(add) pride::app::add
#else
#define PRIDE_COORD_HAS(add) nullptr
#endif
#if PRIDE_LISTS_ONLY
#define PRIDE_FULL_HAS(add) nullptr
#else
#define PRIDE_FULL_HAS(add) pride::app::add
#endif

struct Command {
  const char* name;
  std::string about;                  // in `pride --help`
  std::vector<const char*> examples;  // at the end of its own help
  void (*add)(CLI::App& command);     // null: not in this program
  bool needs_grpc = false;            // needs gRPC; false: libtorch
};

const std::vector<Command> kCommands = {
    {"train",
     "Train a model with N workers",
     {"--task lm --method dlion-vote --workers 4 --lr 1e-3 --steps 300 --out runs/vote",
      "--task cifar10 --data data --method lion-cub --epochs 1 --out runs/cub"},
     PRIDE_TORCH_HAS(add_train)},
    {"compare",
     "Train by several methods and compare them on the same task. Runs of one seed have the same "
     "initial values and batches. Each run is a `pride train` with threads as workers. Flags of "
     "`pride train` apply to all methods. If interrupted, repeat the command to continue.",
     {"--task lm --methods lion,dlion-vote --seeds 1,2,3 --steps 300 --out runs/lm",
      "--task cifar10 --data data --methods all --tune --epochs 1"},
     PRIDE_TORCH_HAS(add_compare)},
    {"sweep",
     "Run an experiment file: methods x workers x seeds x anything else it varies. Each run is a "
     "`pride train` with threads as workers. If interrupted, repeat the command: it runs only what "
     "is missing or changed.",
     {"experiments/demo.toml --list", "experiments/demo.toml --jobs 2"},
     PRIDE_TORCH_HAS(add_sweep)},
    {"replay",
     "Apply a method to recorded gradients, with threads as workers",
     {"--method dlion-vote --input grads.safetensors --output params.safetensors"},
     PRIDE_FULL_HAS(add_replay)},
    {"tokenize",
     "Turn text into shards of GPT-2 tokens",
     {"books/ --vocab gpt2 --out shards", "--check shards --vocab gpt2"},
     pride::app::add_tokenize},
    {"generate",
     "Generate text with a trained language model",
     {"--model runs/vote --prompt \"To be\" --temperature 0.8"},
     PRIDE_TORCH_HAS(add_generate)},
    {"evaluate",
     "Score a language model on multiple-choice questions",
     {"--model runs/gpt2 --vocab gpt2 --tasks questions/ --shots 3"},
     PRIDE_TORCH_HAS(add_evaluate)},
    {"report",
     "Show runs as one self-contained HTML page: charts, tables and settings",
     {"runs/lm --out report.html", "runs/lm --svg loss.svg --chart loss"},
     pride::app::add_report},
    {"serve",
     "Coordinate workers that join and leave: a round closes when all have voted, or at a quorum",
     {"--dir runs/coordinator --listen 127.0.0.1:4770 --http 127.0.0.1:8080",
      "--dir runs/coordinator --listen 0.0.0.0:4770 --certificates certs/server --quorum 5"},
     PRIDE_COORD_HAS(add_serve),
     true},
    {"journal",
     "Check a coordinator's journal and print its rounds as JSON lines",
     {"runs/coordinator", "runs/coordinator --replay | tail -1"},
     PRIDE_COORD_HAS(add_journal),
     true},
    {"certs",
     "Make and revoke the certificates of a project's coordinator and workers",
     {"init certs", "server certs --name coordinator.example.org,192.0.2.1", "worker certs alice",
      "revoke certs alice", "list certs"},
     PRIDE_COORD_HAS(add_certs),
     true},
    {"methods",
     "List the methods: their bytes, state and options",
     {"--workers 8 --params 124M", "--method dlion-vote --method-opt tie=zero"},
     pride::app::add_methods},
    {"bench",
     "Measure this machine and this network",
     {"network --workers 4", "exchange --sizes 1M,10M --methods lion,dlion-vote", "kernels"},
     PRIDE_FULL_HAS(add_bench)},
    {"plan",
     "Predict step times by method and network: does compression pay?",
     {"--params 10M --backward 120ms --bandwidth 1Gbit --latency 50us --world 4",
      "--params 124M --backward 1s --bandwidth 10Gbit --latency 30us --world 8,64,512"},
     pride::app::add_plan},
    {"info",
     "Print this build's version and what it can use on this machine",
     {"--json"},
     PRIDE_FULL_HAS(add_info)},
    {"manual", "Print the manual page, for man", {}, pride::app::add_manual},
    {"completion",
     "Print bash completion: source <(pride completion)",
     {},
     pride::app::add_completion},
};

constexpr std::size_t kLongestWord = 400;  // longer names are mistakes and fill the screen

// Cuts the middle out of a text that is too long for a name.
std::string without_long_words(const std::string& text) {
  std::string shown;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find_first_of(" \n", begin) + 1, text.size());
    const std::size_t n = (end > begin ? end : text.size()) - begin;
    shown += n <= kLongestWord ? text.substr(begin, n)
                               : text.substr(begin, kLongestWord / 4) + "[...]" +
                                     text.substr(begin + n - kLongestWord / 4, kLongestWord / 4);
    begin += n;
  }
  return shown;
}

int fail(const std::string& why, int code = kFailed) {
  std::cout.flush();
  std::cerr << "pride: error: " << without_long_words(why) << std::endl;
  return code;
}

// True if stdout is a pipe whose reader has gone, as in `pride info | head -1`.
bool reader_gone() {
  pollfd out{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

// Unwritten output is a failure, unless its reader is gone.
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

using Words = std::vector<std::string>;

Words subcommands_of(const CLI::App& app) {
  Words names;
  for (const CLI::App* known : app.get_subcommands({})) names.push_back(known->get_name());
  return names;
}

// A better text for errors that CLI11 reports as a missing value or an extra word: an unknown flag
// or subcommand, or a missing subcommand. Empty for other errors.
std::string unknown_word(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().back();
  const Words left = command->remaining(), known = subcommands_of(*command);
  std::string names;
  for (const std::string& name : known) names += " " + name;
  for (const std::string& word : left) {
    if (!word.starts_with("-") && known.empty()) continue;
    if (word.starts_with("-")) {
      const std::string flag = word.substr(0, word.find('='));
      return pride::concat("unknown flag ", flag,
                           pride::app::suggestion(flag, pride::app::flags_of(*command)));
    }
    const std::string near = pride::app::suggestion(word, known);
    return pride::concat("unknown subcommand \"", word, "\"",
                         near.empty() ? "; there are" + names : near);
  }
  return known.empty() ? "" : pride::concat(command->get_name(), " needs a subcommand:", names);
}

// Refuses empty values, because commands treat them as not given.
void refuse_empty_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string name = option->get_single_name();
    if (option->get_items_expected_max() == 0 || name == "delimiter" || name == "prompt") continue;
    option->check(CLI::Validator(
        [](const std::string& text) { return text.empty() ? "must not be empty" : ""; }, ""));
  }
  for (CLI::App* command : app.get_subcommands({})) refuse_empty_values(*command);
}

// Adds a command that the help lists and that always fails, because its library is missing.
void add_missing([[maybe_unused]] CLI::App& command, [[maybe_unused]] bool needs_grpc) {
#if !PRIDE_LISTS_ONLY
  struct Library {
    const char *name, *package, *option;
  };
  const Library it = needs_grpc ? Library{"gRPC", "libgrpc++-dev", "PRIDE_WITH_COORD"}
                                : Library{"libtorch", "libtorch-dev", "PRIDE_WITH_TORCH"};
  command.description(
      pride::concat(command.get_description(), " (not in this build: it has no ", it.name, ")"));
  command.allow_extras();
  command.callback([&command, it] {
    throw pride::Error(pride::concat("this build of pride has no ", it.name, ", which `pride ",
                                     command.get_name(), "` needs: install ", it.name, " (Debian: ",
                                     it.package, ") and configure with -D", it.option, "=ON"));
  });
#endif
}

void add_command(CLI::App& app, const Command& row) {
  CLI::App& command = *app.add_subcommand(row.name, row.about);
  row.add != nullptr ? row.add(command) : add_missing(command, row.needs_grpc);
  if (row.examples.empty()) return;
  std::string text = command.get_footer() + "Examples:\n";
  for (const char* line : row.examples) {
    text += pride::concat("  pride ", row.name, " ", line, "\n");
  }
  command.footer(text);
}

// With "--steps= --quiet" CLI11 would use "--quiet" as the number of steps.
std::string flag_without_value(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--") break;
    if (word.starts_with("--") && word.find('=') + 1 == word.size()) return word;
  }
  return "";
}

int parse(CLI::App& app, int argc, char** argv) {
  if (const std::string word = flag_without_value(argc, argv); !word.empty()) {
    std::cerr << word << ": nothing follows the \"=\"; give an empty value as a separate word: "
              << word.substr(0, word.size() - 1)
              << " \"\"\nRun with --help for more information.\n";
    return kUsage;
  }
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& e) {
    std::string wrong = e.get_exit_code() == 0 ? "" : unknown_word(app);
    const std::string text = e.what();
    if (e.get_name() == "ArgumentMismatch" &&
        text.find(": At Most 1 required") != std::string::npos) {
      wrong = text.substr(0, text.find(':')) + ": given more than once";
    }
    if (wrong.empty()) return app.exit(e) == 0 ? 0 : kUsage;
    std::cerr << wrong << "\nRun with --help for more information.\n";
    return kUsage;
  }
}

int run(int argc, char** argv, pride::app::HandOver* hand_over) {
  CLI::App app("Data-parallel training with about one bit per parameter on the wire.", "pride");
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_version_flag("--version", std::string("pride ") + pride::app::kVersion);
  app.set_help_all_flag("--help-all", "Print the help of all subcommands and exit");
  app.require_subcommand(1);
  for (const Command& row : kCommands) add_command(app, row);
  if (hand_over != nullptr) hand_over(subcommands_of(app), {argv + 1, argv + argc});
  refuse_empty_values(app);
  return parse(app, argc, argv);
}

}  // namespace

std::vector<std::string> pride::app::flags_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const auto* kind : {&option->get_lnames(), &option->get_fnames()}) {
      for (const std::string& name : *kind) names.push_back("--" + name);
    }
  }
  return names;
}

char** pride::app::arguments() { return main_arguments; }

int pride_main(int argc, char** argv, pride::app::HandOver* hand_over) {
  main_arguments = argv;
  try {
    return finish(run(argc, argv, hand_over));
  } catch (const std::exception& e) {
    return fail(e.what(), pride::app::exit_code_of(e));
  }
}
