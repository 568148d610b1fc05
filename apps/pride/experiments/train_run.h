// What can be known of a run before it is made: its settings, and whether `pride train` takes them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "pride/train/plan.h"
#include "train_names.h"

namespace pride::app {

// Flags of `pride train` by name without dashes, each with its values as texts.
using FlagValues = std::map<std::string, std::vector<std::string>>;

// "--name=value" for each value of each flag.
std::vector<std::string> arguments_of(const FlagValues& flags);

// What `pride train` would understand. Throws InvalidArgument.
TrainOptions parse_train(const std::vector<std::string>& arguments);

// What summary.json will say under "settings".
nlohmann::json settings_json(const TrainOptions& options);

// Everything of a run short of its first step, on one rank. `task`: the one that these settings
// make, if it is loaded already. What this accepts is refused by `pride train` for its device or
// for want of memory only. Throws InvalidArgument, DataError.
TrainPlan dry_run(const TrainOptions& options, std::shared_ptr<const Task> task = nullptr);

}  // namespace pride::app
