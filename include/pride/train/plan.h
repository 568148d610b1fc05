// TrainPlan: the settings of a run, with all defaults for its task and world.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pride/coordinator.h"
#include "pride/registry.h"
#include "pride/replica.h"
#include "pride/schedule.h"
#include "pride/train/options.h"
#include "pride/train/sampler.h"
#include "pride/train/task.h"

namespace pride::train {

struct TrainPlan {
  TrainOptions options;  // as given; `workers` and `batch` filled in
  std::shared_ptr<const Task> task;
  int world = 1;
  Sharding sharding;
  int shards = 1;  // parts of the data: one for each worker, or with a coordinator --shards
  std::int64_t steps = 0;
  double steps_per_epoch = 0;
  double peak_lr = 0;
  Schedule schedule;
  OptimizerOptions optimizer;
  std::shared_ptr<CoordinatorClient> coordinator;  // of options.coordinator, once it is connected
  std::string run_settings;                        // RunWorkerOptions::settings
  std::vector<std::string> notes;                  // defaults that a user should know, for the log

  std::int64_t samples_per_step() const noexcept {
    return world * options.batch * options.accumulate;
  }
};

// The index in `optimizer.groups` of a tensor, by whether the model decays it.
constexpr int group_of(bool decay, bool decay_all) noexcept { return decay || decay_all ? 0 : 1; }

// The names, shapes and groups of the model's parameters.
Layout layout_of(const Model& model, bool decay_all = false);

// The default of the option "freeze_steps", after which a method with dense first steps freezes its
// second moment. Empty for other methods.
std::optional<std::int64_t> default_freeze_steps(const MethodInfo& method,
                                                 const OptimizerOptions& given, std::int64_t steps);

// Checks the options and fills in the defaults. Without `task` it makes options.task, which loads
// its data. Throws InvalidArgument, DataError.
TrainPlan make_plan(const TrainOptions& options, int world,
                    std::shared_ptr<const Task> task = nullptr);

}  // namespace pride::train
