// Keys of the hash words that decide zeros and ties. They are part of the wire format: every
// implementation must draw the same bits (docs/wire_format.md, "Zeros and ties").
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "pride/random_bits.h"

namespace pride {

// Ties: the same on every rank.
constexpr std::uint64_t tie_key(std::uint64_t seed, std::int64_t step) {
  return mix64(seed ^ 0x5449455F5449455Fu, static_cast<std::uint64_t>(step));
}

// Zeros: a key per rank, so that N exact zeros do not vote as one.
constexpr std::uint64_t zero_key(std::uint64_t seed, std::int64_t step, int rank) {
  return mix64(mix64(seed ^ 0x5A45524F5A45524Fu, static_cast<std::uint64_t>(step)),
               static_cast<std::uint64_t>(rank));
}

}  // namespace pride
