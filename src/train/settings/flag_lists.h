// The parts of the table of settings that have files of their own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "pride/train/flags.h"

namespace pride::train {

inline constexpr double kMostSteps = 0x1p40;

std::vector<Flag> coordinator_flags();
std::vector<Flag> output_flags();

}  // namespace pride::train
