// A program of pride: its commands, and what runs them. All of them say "pride" of themselves,
// because `pride` starts the others.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "program/world.h"

namespace pride::inline program {

struct Command {
  std::string name;
  std::string about;                  // in `pride --help`
  std::vector<std::string> examples;  // at the end of its own help
  // Declares the flags and the action of its command. Actions report failure by exceptions:
  // run_program() prints "pride: error: ..." and returns 1.
  std::function<void(CLI::App& command)> add;
};

struct Program {
  std::vector<Command> commands;
  // Values of flags, for the completion: "schedule" -> linear, cosine.
  std::map<std::string, std::vector<std::string>> (*values)() = nullptr;
  Job (*join_torchrun)(const Workers& workers) = nullptr;  // null: torchrun's jobs are refused
  // Called with the command line before it is parsed; may replace the process.
  void (*before)(const CLI::App& app, const std::vector<std::string>& words) = nullptr;
  // What the other programs print for these words, which `pride` adds to its own output.
  std::string (*others)(const std::string& words) = nullptr;
  // True for a command, such as "bench network", that stands in another program's part.
  bool (*is_elsewhere)(const std::string& path) = nullptr;
};

// Parses the command line, runs the command and returns the exit code: 0 done, 1 the command failed
// ("pride: error: ..." on standard error), 2 wrong usage. Adds the commands `manual` and
// `completion`. REQUIRES: the program outlives the process's last call.
int run_program(const Program& program, int argc, char** argv);

// Help of --methods, for commands that measure or plan several.
inline constexpr const char* kMethodsHelp =
    "Methods, separated by commas, optionally with options: lion:dense=bf16";

// Sets the command's action. Returns the values of its flags, which live as long as the command.
template <typename Arguments>
Arguments& arguments_of(CLI::App& command, void (*run)(Arguments&)) {
  const auto arguments = std::make_shared<Arguments>();
  command.callback([arguments, run] { run(*arguments); });
  return *arguments;
}

// The command's flags with dashes, including the negative forms.
std::vector<std::string> flags_of(const CLI::App& command);

// The manual page of all commands of `app`, and bash's completion. With --part only the commands,
// for another program's page. `program` must outlive the command.
void add_manual(CLI::App& command, const Program& program);
void add_completion(CLI::App& command, const Program& program);

}  // namespace pride::inline program

// A program's run_program(), for main() and for tests of many command lines in one process.
extern "C" int pride_main(int argc, char** argv);
