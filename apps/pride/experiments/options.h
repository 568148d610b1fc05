// The flags of `pride sweep` and `pride compare`, and the experiments that they mean.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "experiments/experiment.h"
#include "experiments/runner.h"

namespace pride::app {

// Common to both.
struct ExperimentOptions {
  std::string out;
  RunnerOptions runner;
  bool list = false, json = false;
};

struct SweepOptions : ExperimentOptions {
  std::string file;
  std::vector<std::string> set;  // FLAG=VALUE
  std::string data;
};

struct CompareOptions : ExperimentOptions {
  std::vector<std::string> methods;  // NAME, LABEL=NAME or all
  std::vector<std::uint64_t> seeds = {1, 2, 3};
  std::vector<std::string> set;  // LABEL:FLAG=VALUE
  bool tune = false;
  std::uint64_t tune_seed = 100;
  std::vector<std::string> tune_beta2;
  std::optional<double> tune_epochs;
  std::optional<std::int64_t> tune_steps;
  TrainOptions train;  // what all methods share; only its check by the parser is used
};

void add_sweep_flags(CLI::App& app, SweepOptions& options);

// Those of `pride train` that a comparison does not decide itself, and its own. `options` must live
// as long as the app.
void add_compare_flags(CLI::App& app, CompareOptions& options);

// --set and --data as flags of `pride train`. Throws InvalidArgument.
FlagValues flags_instead(const SweepOptions& options);

// Every method on every seed: one grid, and with --tune a climb over rates and beta2. `app`: by
// add_compare_flags(), parsed; --config is applied. Throws InvalidArgument.
Experiment comparison_of(CLI::App& app, CompareOptions& options);

}  // namespace pride::app
