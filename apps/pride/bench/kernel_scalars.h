// The scalars with which the rows of `pride bench kernels` call their kernels.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/kernels.h"
#include "kernels/philox_key.h"

namespace pride::app {

inline constexpr kernels::Blend kBlend{0.9f, 0.1f, 0.99f, 0.01f};
// Decay takes off one unit in the last place: parameters stay in range, and away from denormals,
// however often a step is repeated.
inline constexpr kernels::Step kStep{.decay = 0x1.fffffep-1f, .lr = 3e-4f};
inline constexpr kernels::HashWords kHash{.key = 1, .first_word = 0};
inline constexpr kernels::PhiloxKey kKey{.seed = 7, .step = 3, .rank = 1};

}  // namespace pride::app
