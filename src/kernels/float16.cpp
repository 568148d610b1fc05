// Conversions of binary16 on the bits, which compilers vectorise: F16C is not on every machine.
// SPDX-License-Identifier: Apache-2.0
#include "pride/float16.h"

#include <bit>
#include <cstddef>

namespace pride {
namespace {

constexpr std::uint32_t kSign = 0x8000'0000, kInfinity = 0x7F80'0000, kQuietBit = 0x0040'0000;

// 2^112 shifts binary16's exponent, bias 15, to binary32's, bias 127; denormals become normal.
float widened(std::uint16_t half) {
  const std::uint32_t magnitude = std::uint32_t{half} & 0x7FFFu;
  const float value = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const std::uint32_t special = magnitude >= 0x7C00u ? kInfinity | (magnitude << 13) : 0;
  const std::uint32_t bits = special != 0 ? special : std::bit_cast<std::uint32_t>(value);
  return std::bit_cast<float>(bits | (std::uint32_t{half} & 0x8000u) << 16);
}

// Below 2^-14 the sum with 0.5 has the last place of a binary16 denormal and is rounded by the
// addition. Above, just under half a last place and the last kept bit are added: ties go to even.
std::uint16_t rounded(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits & kSign, magnitude = bits ^ sign;
  const std::uint32_t small =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F00'0000u;
  const std::uint32_t normal = (magnitude - (112u << 23) + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
  std::uint32_t half = magnitude < 0x3880'0000u ? small : normal;
  if (magnitude >= 0x477F'F000u) half = 0x7C00u;  // 65520 and above
  if (magnitude > kInfinity) half = 0x7E00u | ((magnitude & ~kQuietBit) >> 13 & 0x1FFu);
  return static_cast<std::uint16_t>(half | sign >> 16);
}

}  // namespace

void to_float(std::span<const Float16> in, std::span<float> out) noexcept {
  for (std::size_t i = 0; i < in.size(); ++i) out[i] = widened(static_cast<std::uint16_t>(in[i]));
}

void to_float16(std::span<const float> in, std::span<Float16> out) noexcept {
  for (std::size_t i = 0; i < in.size(); ++i) out[i] = static_cast<Float16>(rounded(in[i]));
}

}  // namespace pride
