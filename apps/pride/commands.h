// The subcommands of the program `pride`; program.cpp has the table of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "train_names.h"

namespace pride::app {

inline constexpr int kInterrupted = 130;         // exit code: 128 + SIGINT, as in shells
inline constexpr double kMostOfASize = 1 << 20;  // heads, a batch, examples of a prompt

// Help of --methods, for commands that measure or plan several.
inline constexpr const char* kMethodsHelp =
    "Methods, separated by commas, optionally with options: lion:dense=bf16";

// Each declares the flags and the action of its command. Actions report failure by exceptions: main
// prints "pride: error: ..." and returns 1.
void add_train(CLI::App& command);
void add_compare(CLI::App& command);
void add_sweep(CLI::App& command);
void add_replay(CLI::App& command);
void add_tokenize(CLI::App& command);
void add_generate(CLI::App& command);
void add_evaluate(CLI::App& command);
void add_report(CLI::App& command);
void add_methods(CLI::App& command);
void add_bench(CLI::App& command);
void add_plan(CLI::App& command);
void add_info(CLI::App& command);
void add_serve(CLI::App& command);
void add_journal(CLI::App& command);
void add_certs(CLI::App& command);
void add_manual(CLI::App& command);  // of all commands of the running program
void add_completion(CLI::App& command);

// Sets the command's action. Returns the values of its flags, which live as long as the command.
template <typename Arguments>
Arguments& arguments_of(CLI::App& command, void (*run)(Arguments&)) {
  const auto arguments = std::make_shared<Arguments>();
  command.callback([arguments, run] { run(*arguments); });
  return *arguments;
}

// The command's flags with dashes, including the negative forms.
std::vector<std::string> flags_of(const CLI::App& command);

}  // namespace pride::app
