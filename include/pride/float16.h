// Float16 (IEEE binary16): a format of gradients and model weights; optimizer state is float32.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

namespace pride {

enum class Float16 : std::uint16_t {};

// Exact. REQUIRES: in.size() == out.size().
void to_float(std::span<const Float16> in, std::span<float> out) noexcept;

// Rounds to nearest, ties to even; beyond 65504 to infinity; NaN stays NaN. The same bits on every
// instruction set. REQUIRES: in.size() == out.size().
void to_float16(std::span<const float> in, std::span<Float16> out) noexcept;

}  // namespace pride
