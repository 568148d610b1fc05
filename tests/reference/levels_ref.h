// Scalar oracles of the kernels in kernels/levels.h: the formulas, coordinate by coordinate.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/levels.h"
#include "pride/random_bits.h"
#include "reference/kernels_ref.h"

namespace pride::reference {

using kernels::LevelShape;
using Levels = std::vector<std::int8_t>;

inline int round_to_even(double y) {
  const double below = std::floor(y), part = y - below;
  const bool odd = std::fmod(below, 2.0) != 0;
  return static_cast<int>(below) + (part > 0.5 || (part == 0.5 && odd) ? 1 : 0);
}

inline float scaled(float u, float inv, int largest) {
  const float y = u * inv, limit = static_cast<float>(largest);
  return y > limit ? limit : y < -limit ? -limit : y;
}

inline int level(float u, float inv, int largest) {
  return round_to_even(double{scaled(u, inv, largest)});
}

inline int level(float u, float inv, int largest, float r) {
  const float y = scaled(u, inv, largest), below = std::floor(y);
  return static_cast<int>(below) + (r < y - below ? 1 : 0);
}

// As docs/wire_format.md has it: runs of 512 coordinates, a line a bit.
inline Words packed(const Levels& q, int bits) {
  const std::size_t n_words = words_for(q.size());
  Words out(n_words * static_cast<std::size_t>(bits));
  const int s = (1 << (bits - 1)) - 1;
  for (std::size_t i = 0; i < q.size(); ++i) {
    const std::size_t run = i / 512, left = n_words - 8 * run, width = left < 8 ? left : 8;
    for (int b = 0; b < bits; ++b) {
      const std::size_t word = 8 * run * static_cast<std::size_t>(bits) +
                               static_cast<std::size_t>(b) * width + i % 512 / 64;
      out[word] |= static_cast<std::uint64_t>(((q[i] + s) >> b) & 1) << (i % 64);
    }
  }
  return out;
}

inline float uniform(std::uint64_t seed, std::int64_t step, int rank, std::uint64_t coord) {
  const auto words = philox4x32(
      {static_cast<std::uint32_t>(coord / 4), static_cast<std::uint32_t>((coord / 4) >> 32),
       static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(rank) ^ 0x4C510000u},
      {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return static_cast<float>(words[coord % 4] >> 8) * 0x1p-24f;
}

}  // namespace pride::reference
