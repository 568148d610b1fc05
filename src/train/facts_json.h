// Facts and settings as JSON.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include "pride/train/facts.h"
#include "pride/train/options.h"

namespace pride::train {

nlohmann::ordered_json to_json(const Facts& facts);

// Every setting of a run under its flag's name; those that were left to the method are null. Flags
// of output are none.
nlohmann::ordered_json to_json(const TrainOptions& options);

}  // namespace pride::train
