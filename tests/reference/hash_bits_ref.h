// Scalar oracle of the bits that decide zeros and ties, one coordinate at a time.
// SPDX-License-Identifier: Apache-2.0
//
// Oracle of: docs/wire_format.md, "Zeros and ties". Limits: mix64 is the library's.
#pragma once

#include <cmath>
#include <cstdint>

#include "pride/random_bits.h"

namespace pride::reference {

// Signs and votes: 1 if x is above the centre of its cell, whose half is at least 4.25 steps.
inline bool above_centre(float x, float step) {
  const float least = 4.25f * step;
  if (!(least >= 0x1p-100f && least <= 0x1p100f)) return false;
  double half = 0x1p-101;
  for (int power = -100; half < least; ++power) {
    half = std::ldexp(1.0, power) >= least ? std::ldexp(1.0, power) : std::ldexp(1.5, power);
  }
  const float halves = x * static_cast<float>(1 / half);
  return std::abs(halves) < 0x1p23f && std::fmod(std::floor(halves), 2.0f) != 0;
}
inline bool zero_of(float x, float step, std::uint64_t t, std::uint64_t rank) {
  return above_centre(x, step) != ((t / 2 + rank) % 2 == 1);
}
inline bool tie_of(float x, float step, std::uint64_t t) {
  return above_centre(x, step) != ((t + 1) / 2 % 2 == 1);
}

// Error feedback: a zero of this rank in exchange t. Two exchanges have opposite bits, and so have
// two ranks.
inline bool zero_bit(std::uint64_t seed, std::uint64_t t, std::uint64_t rank, std::uint64_t coord) {
  const std::uint64_t word = mix64(mix64(seed ^ 0x5A45524F5A45524Fu, t / 2), coord / 64);
  return ((word >> (coord % 64)) & 1) != (t + rank) % 2;
}

// A tie in exchange t.
inline bool tie_bit(std::uint64_t seed, std::uint64_t t, std::uint64_t coord) {
  const std::uint64_t word = mix64(mix64(seed ^ 0x5449455F5449455Fu, t / 2), coord / 64);
  return ((word >> (coord % 64)) & 1) != t % 2;
}

}  // namespace pride::reference
