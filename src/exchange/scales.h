// Scales that the ranks share before they encode: one float a tensor or a row.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "pride/communicator.h"
#include "pride/cost.h"
#include "pride/step.h"

namespace pride::exchange {

// scales[t] = largest of the ranks' scales[t], (number of tensors).
// REQUIRES: finite, not negative. Each rank sends its own to every other.
void share_largest(Communicator& comm, const StepContext& ctx, std::span<float> scales);

// scales[t] = mean of the ranks' scales[t] that are not 0, added in rank order; 0 if there is none.
void share_mean(Communicator& comm, const StepContext& ctx, std::span<float> scales);

// Exact bytes that a rank sends.
Cost scales_cost(std::size_t n_tensors, int world);

}  // namespace pride::exchange
