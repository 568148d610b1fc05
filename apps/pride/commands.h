// The commands of the program `pride` itself; pride.cpp has the table of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

namespace pride::app {

void add_replay(CLI::App& command);
void add_methods(CLI::App& command);
void add_bench(CLI::App& command);
void add_info(CLI::App& command);

}  // namespace pride::app
