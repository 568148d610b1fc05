// SPDX-License-Identifier: Apache-2.0
#include "train/same_settings.h"

#include <nlohmann/json.hpp>
#include <string>

#include "settings.h"

namespace pride::app {
namespace {

Settings settings_of(const TrainPlan& plan) {
  Settings settings;
  const nlohmann::ordered_json flags = to_json(plan.options);
  for (const auto& [key, value] : flags.items()) {
    // the same data may lie elsewhere on another machine; its hash counts
    if (key != "data" && key != "vocab" && key != "init" && key != "loader-threads")
      settings.emplace_back("--" + key, value.dump());
  }
  const std::string out = plan.options.save_every > 0 ? plan.options.out : "";
  settings.emplace_back("--out", out);
  settings.emplace_back("the data (--data)", plan.task->data_facts().at("hash").dump());
  settings.emplace_back("the model (--init)", plan.task->model_size().dump());
  settings.emplace_back("the number of steps", std::to_string(plan.steps));
  return settings;
}

}  // namespace

void check_same_settings(Communicator& comm, const TrainPlan& plan) {
  check_same_settings(comm, settings_of(plan));
}

}  // namespace pride::app
