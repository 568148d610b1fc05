// The subcommands of the program `pride`. Each function registers one; its callback runs it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace pride::app {

// Callbacks report failure by exceptions; main prints "pride: error: ..." and returns 1.
void add_train_command(CLI::App& app);    // without libtorch: exists, and says that it needs it
void add_compare_command(CLI::App& app);  // the same
void add_sweep_command(CLI::App& app);    // the same
void add_replay_command(CLI::App& app);
void add_tokenize_command(CLI::App& app);
void add_generate_command(CLI::App& app);  // as train
void add_evaluate_command(CLI::App& app);  // the same
void add_report_command(CLI::App& app);
void add_methods_command(CLI::App& app);
void add_bench_command(CLI::App& app);
void add_plan_command(CLI::App& app);
void add_info_command(CLI::App& app);

}  // namespace pride::app
