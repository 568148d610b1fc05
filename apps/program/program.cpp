// Parses the command line and turns exceptions into exit codes.
// SPDX-License-Identifier: Apache-2.0
#include "program/program.h"

#include <poll.h>
#include <unistd.h>

#include <CLI/Formatter.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "pride/error.h"
#include "program/build_info.h"
#include "program/suggestion.h"

namespace pride::inline program {
namespace {

using Words = std::vector<std::string>;

constexpr int kFailed = 1;
constexpr int kUsage = 2;

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
      return concat("unknown flag ", flag, suggestion(flag, flags_of(*command)));
    }
    const std::string near = suggestion(word, known);
    return concat("unknown subcommand \"", word, "\"", near.empty() ? "; there are" + names : near);
  }
  return known.empty() ? "" : concat(command->get_name(), " needs a subcommand:", names);
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

void add_command(CLI::App& app, const Command& row) {
  CLI::App& command = *app.add_subcommand(row.name, row.about);
  row.add(command);
  if (row.examples.empty()) return;
  std::string text = command.get_footer() + "Examples:\n";
  for (const std::string& line : row.examples) {
    text += concat("  pride ", row.name, " ", line, "\n");
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

int run(const Program& program, int argc, char** argv) {
  CLI::App app("Data-parallel training with about one bit per parameter on the wire.", "pride");
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_version_flag("--version", std::string("pride ") + kVersion);
  app.set_help_all_flag("--help-all", "Print the help of all subcommands and exit");
  app.require_subcommand(1);
  for (const Command& row : program.commands) add_command(app, row);
  add_manual(*app.add_subcommand("manual", "Print the manual page, for man"), program);
  add_completion(
      *app.add_subcommand("completion", "Print bash completion: source <(pride completion)"),
      program);
  const Words words(argv + std::min(argc, 1), argv + argc);
  if (program.before != nullptr) program.before(app, words);
  refuse_empty_values(app);
  const int code = parse(app, argc, argv);
  if (program.others != nullptr && words == Words{"--help-all"}) {
    std::cout << program.others("--help-all");
  }
  return code;
}

}  // namespace

std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const auto* kind : {&option->get_lnames(), &option->get_fnames()}) {
      for (const std::string& name : *kind) names.push_back("--" + name);
    }
  }
  return names;
}

int run_program(const Program& program, int argc, char** argv) {
  // a closed pipe must not kill a training run in the middle of a checkpoint
  std::signal(SIGPIPE, SIG_IGN);
  use_torchrun(program.join_torchrun);
  try {
    return finish(run(program, argc, argv));
  } catch (const std::exception& e) {
    return fail(e.what(), exit_code_of(e));
  }
}

}  // namespace pride::inline program
