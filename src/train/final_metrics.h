// What a summary.json says of a run's last evaluation: numbers, or why they are no result.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "pride/error.h"

namespace pride::train {

// Copies the metrics that are numbers into `numbers`. Returns why the run diverged, or nothing: a
// metric is null, as JSON has it, if it is not finite. That of the last step alone, train_loss, may
// be one of a step that was skipped. Throws what `Json` throws if `metrics` is no object.
template <typename Json>
std::string read_final_metrics(const Json& metrics, std::map<std::string, double>& numbers) {
  std::string diverged;
  for (const auto& [name, value] : metrics.items()) {
    if (value.is_number()) numbers[name] = value;
    if (value.is_null() && name != "train_loss") {
      diverged = concat("diverged: the final ", name, " is not finite");
    }
  }
  return diverged;
}

}  // namespace pride::train
