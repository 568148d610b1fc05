// The commands of pride-coordinator; coordinator.cpp has the table of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

namespace pride::app {

void add_serve(CLI::App& command);
void add_journal(CLI::App& command);
void add_certs(CLI::App& command);

}  // namespace pride::app
