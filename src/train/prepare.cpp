// What ranks settle among themselves before they train.
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <string>

#include "pride/train/flags.h"
#include "pride/train/trainer.h"
#include "train/facts_json.h"
#include "train/settings/nodes.h"
#include "train/settings/settings.h"

namespace pride::train {
namespace {

Settings settings_of(const TrainPlan& plan) {
  Settings settings;
  const nlohmann::ordered_json flags = to_json(plan.options);
  for (const auto& [key, value] : flags.items()) {
    // the same data may lie elsewhere on another machine; its hash counts
    if (!Flag::find(key)->rules.may_differ) settings.emplace_back("--" + key, value.dump());
  }
  settings.emplace_back("--out", plan.options.save_every > 0 ? plan.options.out : "");
  settings.emplace_back("the data (--data)", plan.task->data().hash);
  settings.emplace_back("the model (--init)", to_json(plan.task->model().size).dump());
  settings.emplace_back("the number of steps", std::to_string(plan.steps));
  return settings;
}

}  // namespace

void prepare(Communicator& comm, TrainPlan& plan) {
  const std::chrono::duration<double> timeout(plan.options.timeout_s);
  comm.set_timeout(std::chrono::ceil<std::chrono::milliseconds>(timeout));
  check_same_settings(comm, settings_of(plan));
  plan.optimizer.nodes = nodes_of(comm, plan.options.hierarchical);
}

}  // namespace pride::train
