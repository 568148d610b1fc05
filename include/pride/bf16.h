// bfloat16: the upper half of a float32. A format of gradients and model weights; optimizer state
// is float32.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

namespace pride {

enum class BFloat16 : std::uint16_t {};

// Exact. REQUIRES: in.size() == out.size().
void to_float(std::span<const BFloat16> in, std::span<float> out) noexcept;

// Rounds to nearest, ties to even; NaN stays NaN. The same bits on every instruction set, so model
// weights rounded from equal parameters are equal on all ranks. REQUIRES: in.size() == out.size().
void to_bf16(std::span<const float> in, std::span<BFloat16> out) noexcept;

}  // namespace pride
