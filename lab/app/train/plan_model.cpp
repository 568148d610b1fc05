// SPDX-License-Identifier: Apache-2.0
#include "train/plan_model.h"

#include "pride/train/trainer.h"
#include "train/flags.h"
#include "train/settings/groups.h"
#include "train/step_times.h"

namespace pride::app {

void TrainedModel::add_flags(CLI::App& command) { add_workload_flags(command, workload_); }

Layout TrainedModel::layout() const { return model_layout(workload_); }

std::vector<ParamGroup> TrainedModel::groups() const {
  return workload_.groups.empty() ? std::vector<ParamGroup>() : groups_of(workload_);
}

double TrainedModel::step_s(Communicator& comm, double seconds) const {
  pin_threads();
  const auto rows =
      bench_steps(comm, {.options = workload_, .methods = {}, .seconds = 2 * seconds, .least = 3});
  return rows.front().times.median_s;
}

}  // namespace pride::app
