// Scalar oracle of the bits that decide zeros and ties, one flat coordinate at a time.
// SPDX-License-Identifier: Apache-2.0
//
// Oracle of: docs/wire_format.md, "Zeros and ties". Limits: mix64 is the library's.
#pragma once

#include <cstdint>

#include "pride/random_bits.h"

namespace pride::reference {

// A zero of this rank in exchange t. Two exchanges have opposite bits, and so have two ranks.
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
