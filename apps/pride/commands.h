// The subcommands of the program `pride`. Each function registers one; its callback runs it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace pride::app {

// What `pride --help` says of the commands that not every build of the program has.
inline constexpr const char* kTrainAbout = "Train a model with N workers";
inline constexpr const char* kSweepAbout =
    "Make the runs of an experiment file: methods x workers x seeds x whatever else it varies. "
    "Every run is a `pride train` of its own, with threads as workers. The same command goes on "
    "where it was interrupted, and makes only what is missing or changed.";
inline constexpr const char* kCompareAbout =
    "Train by several methods and compare: the same task and, for each seed, the same initial "
    "values and batches. Every run is a `pride train` of its own, with threads as workers; its "
    "flags may be given here, for all methods. The same command goes on where it was interrupted.";
inline constexpr const char* kGenerateAbout = "Let a trained language model write";
inline constexpr const char* kEvaluateAbout = "Ask a language model questions with choices";
inline constexpr const char* kReplayAbout =
    "Push recorded gradients through a method, with threads as workers";
inline constexpr const char* kBenchAbout = "Measure this machine and this network";
inline constexpr const char* kInfoAbout = "Say what this build is and what it can use here";

inline constexpr double kMostOfASize = 1 << 20;  // heads, a batch, examples of a prompt

// Of --methods, wherever several are measured or planned.
inline constexpr const char* kMethodsHelp =
    "Separated by commas, each perhaps with options of its own, as lion:dense=bf16";

// Callbacks report failure by exceptions; main prints "pride: error: ..." and returns 1.
void add_train_command(CLI::App& app);
void add_compare_command(CLI::App& app);
void add_sweep_command(CLI::App& app);
void add_replay_command(CLI::App& app);
void add_tokenize_command(CLI::App& app);
void add_generate_command(CLI::App& app);
void add_evaluate_command(CLI::App& app);
void add_report_command(CLI::App& app);
void add_methods_command(CLI::App& app);
void add_bench_command(CLI::App& app);
void add_plan_command(CLI::App& app);
void add_info_command(CLI::App& app);
void add_manual_commands(CLI::App& app);  // of the commands that `app` has when they run

// With their dashes, the negative forms too.
std::vector<std::string> flags_of(const CLI::App& command);

}  // namespace pride::app
