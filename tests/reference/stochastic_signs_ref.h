// Scalar oracle of stochastic signs, one coordinate at a time.
// SPDX-License-Identifier: Apache-2.0
//
// Oracle of: S_R(u) = +1 with probability (R + u)/(2R), else -1, of ranks and of the vote (Jiang &
// Zhang 2025, arXiv:2508.12327). Limits: the random words are those of docs/wire_format.md.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "pride/random_bits.h"

namespace pride::reference {

// The word of a flat coordinate, for the signs of a rank or (rank 0) the vote.
enum class SignWords : std::uint32_t { kRank = 0x53530000u, kVote = 0x53560000u };
inline std::uint32_t sign_word(std::uint64_t seed, std::uint64_t step, SignWords purpose, int rank,
                               std::uint64_t coord) {
  const auto low = [](std::uint64_t v) { return static_cast<std::uint32_t>(v); };
  return philox4x32({low(coord / 4), low((coord / 4) >> 32), low(step),
                     static_cast<std::uint32_t>(rank) ^ static_cast<std::uint32_t>(purpose)},
                    {low(seed), low(seed >> 32)})[coord % 4];
}

// R of a tensor's values: the largest magnitude; 1 where all are zeros.
inline float sign_scale(std::span<const float> u) {
  float most = 0;
  for (const float v : u) most = std::max(most, std::fabs(v));
  return most < 0x1p-100f ? 1.0f : most;
}

// u is not zero, nor is the vote a tie: those take bits of hash_bits_ref.h.
inline bool stochastic_sign(float u, float scale, std::uint32_t word) {
  const float t = static_cast<float>(word >> 8) * 0x1p-23f - 1.0f;
  return t * scale < u;
}

inline bool drawn_vote(std::uint32_t count, std::uint32_t present, std::uint32_t word) {
  return (std::uint64_t{word} * present) >> 32 < count;
}

}  // namespace pride::reference
