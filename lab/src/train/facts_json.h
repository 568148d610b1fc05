// Facts and settings as JSON.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include "pride/train/facts.h"
#include "pride/train/options.h"

namespace pride::train {

nlohmann::ordered_json to_json(const Facts& facts);

// Every setting of a run under its flag's name; null: the method's default. Without flags of
// output.
nlohmann::ordered_json to_json(const TrainOptions& options);

}  // namespace pride::train
