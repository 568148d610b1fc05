// Local clipping of one worker's gradient.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

namespace pride::train {

// 2-norm, summed in double in one fixed order.
double norm(std::span<const float> values);

// Scales `values` to the norm `limit` if theirs is larger. A norm that is not finite changes
// nothing: the optimizer then names the tensor. Returns the norm before.
double clip(std::span<float> values, double limit);

}  // namespace pride::train
