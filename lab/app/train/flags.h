// The flags of `pride train` on a command line and in a TOML file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/App.hpp>
#include <string>

#include "pride/train/flags.h"
#include "train_names.h"

namespace pride::app {

// Declares every flag, with its help, on `app`; parsing fills `options`, which must live as long.
void add_train_flags(CLI::App& app, TrainOptions& options);

// The flags that define a step: task, model, batch and buckets.
void add_workload_flags(CLI::App& app, TrainOptions& options);

// Sets the flags of `app` that are not on the command line from a TOML file. Keys are the flags'
// names without dashes, at top level or in a table [train]. Throws InvalidArgument, naming file,
// line and key: unknown key, wrong kind of value; DataError: missing file, or not TOML.
void apply_config(CLI::App& app, const std::string& file);

}  // namespace pride::app
