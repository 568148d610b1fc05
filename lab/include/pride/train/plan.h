// TrainPlan: the settings of a run, with all defaults for its task and world.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
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
  double peak_lr = 0;  // of --method
  Schedule schedule;
  OptimizerOptions optimizer;                      // the groups' rates are their peaks
  std::shared_ptr<CoordinatorClient> coordinator;  // of options.coordinator, once it is connected
  std::string run_settings;                        // RunWorkerOptions::settings
  std::vector<std::string> notes;                  // defaults that a user should know, for the log

  // What changes of the groups: the rate, and the values of --vary in this step.
  std::vector<ParamGroup> groups_at(std::int64_t step) const;
  std::int64_t samples_per_step() const noexcept {
    return world * options.batch * options.accumulate;
  }
};

// The parameter groups of a run: those of --method, then those of each entry of --groups. Of each
// there is a group of decayed tensors, and unless options.decay_all one of tensors without decay.
// Rates that are not given are empty. Throws InvalidArgument.
std::vector<ParamGroup> groups_of(const TrainOptions& options);

// The names and shapes of the model's parameters, and their indices in groups_of(options). Throws
// InvalidArgument if a word of --groups matches no tensor, or one of another entry.
Layout layout_of(const Model& model, const TrainOptions& options = {});

// The default of the option "freeze_steps", after which a method with dense first steps freezes its
// second moment. Empty for other methods, and if it is among the given options.
std::optional<std::int64_t> default_freeze_steps(const MethodInfo& method,
                                                 const std::map<std::string, std::string>& given,
                                                 std::int64_t steps);

// Checks the options and fills in the defaults. Without `task` it makes options.task, which loads
// its data. Throws InvalidArgument, DataError.
TrainPlan make_plan(const TrainOptions& options, int world,
                    std::shared_ptr<const Task> task = nullptr);

}  // namespace pride::train
