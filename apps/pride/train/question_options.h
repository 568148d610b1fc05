// The flags of `pride train` that are for questions with choices alone.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/App.hpp>

#include "train/options.h"

namespace pride::app {

void add_question_flags(CLI::App& app, TrainOptions& options);

// Throws InvalidArgument, naming the flag.
void check_question_options(const TrainOptions& options);

}  // namespace pride::app
