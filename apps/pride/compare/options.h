// What `pride compare` was asked to do, and the flags that say it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "train/options.h"

namespace pride::app {

// Flags of `pride train` by name without dashes, each with its values as texts.
using FlagValues = std::map<std::string, std::vector<std::string>>;

struct CompareOptions {
  std::vector<std::string> methods;  // NAME, LABEL=NAME or all
  std::vector<std::uint64_t> seeds = {1, 2, 3};
  std::vector<std::string> set;  // LABEL:FLAG=VALUE
  bool tune = false;
  std::uint64_t tune_seed = 100;
  std::optional<double> tune_epochs;
  std::optional<std::int64_t> tune_steps;
  std::string out;
  bool overwrite = false, quiet = false, json = false;
  TrainOptions train;  // what all methods share; only its check by the parser is used
};

// Declares the flags of `pride compare` on `app`: its own, and those of `pride train` that a
// comparison does not decide itself. `options` must live as long.
void add_compare_flags(CLI::App& app, CompareOptions& options);

// The flags of `pride train` that were given to `app` (by add_compare_flags), --config applied.
FlagValues given_train_flags(CLI::App& app, const CompareOptions& options);

}  // namespace pride::app
