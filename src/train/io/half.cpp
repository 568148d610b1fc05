// binary16 to float.
// SPDX-License-Identifier: Apache-2.0
#include "train/io/half.h"

namespace pride::train {

float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits} >> 15 << 31;
  const std::uint32_t exponent = (bits >> 10) & 31u;
  const std::uint32_t fraction = bits & 1023u;
  // all ones: infinity or NaN, the payload moved up
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | fraction << 13);
  // zero or subnormal: fraction * 2^-24 is exact in float
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

}  // namespace pride::train
