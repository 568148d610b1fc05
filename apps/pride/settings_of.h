// The settings that a command line holds.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/App.hpp>

#include "train/settings/settings.h"
#include "train_names.h"

namespace pride::app {

// The flags of a command, those left out as well. Not among them are those in which ranks may
// differ: where data lie and how results are written; how the job is made up, and its waits.
Settings settings_of(const CLI::App& command);

}  // namespace pride::app
