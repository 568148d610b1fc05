// The flags of `pride train` that are for images alone.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/App.hpp>

#include "train/options.h"

namespace pride::app {

// What a sample is, and how it is read.
void add_image_flags(CLI::App& app, TrainOptions& options);

// What is done to targets and batches in training.
void add_target_flags(CLI::App& app, TrainOptions& options);

// Throws InvalidArgument, naming the flag.
void check_image_options(const TrainOptions& options);

}  // namespace pride::app
