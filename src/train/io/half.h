// 16-bit floating-point formats to float, exactly.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

namespace pride::train {

// IEEE 754 binary16. Subnormals, infinities and NaN payloads are kept.
float half_to_float(std::uint16_t bits);

// bfloat16: the upper half of a float.
constexpr float bfloat16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

}  // namespace pride::train
