// The commands of pride-lab; lab.cpp has the table of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include "train_names.h"

namespace pride::app {

inline constexpr int kInterrupted = 130;         // exit code: 128 + SIGINT, as in shells
inline constexpr double kMostOfASize = 1 << 20;  // heads, a batch, examples of a prompt

void add_train(CLI::App& command);
void add_compare(CLI::App& command);
void add_sweep(CLI::App& command);
void add_tokenize(CLI::App& command);
void add_generate(CLI::App& command);
void add_evaluate(CLI::App& command);
void add_report(CLI::App& command);
void add_bench(CLI::App& command);
void add_facts(CLI::App& command);

}  // namespace pride::app
