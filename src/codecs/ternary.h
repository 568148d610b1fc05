// Ternary codes (up), their sums (down), and the scales that the ranks share beforehand. Layout and
// examples: docs/wire_format.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "pride/bucket.h"

namespace pride {

// Frame of codes t in {-1, 0, +1}: absent bits of the pieces, words of [t = +1], words of [t >= 0].
struct TernaryFrame {
  explicit TernaryFrame(const Shard& shard);
  std::size_t absent_words, code_words;
  std::size_t absent_at, plus_at, not_minus_at;  // from the start of the frame
  std::size_t bytes;                             // header included
};

// Frame of sums: number of present ranks, uint16, for each piece; then bit planes of the sum of
// t + 1 over the present ranks.
struct SumFrame {
  SumFrame(const Shard& shard, int world);
  std::size_t n_planes, plane_words;
  std::size_t present_at, planes_at;
  std::size_t bytes;
};

// Frame of one float32 for each tensor of the layout, from every rank to every other.
struct ScalesFrame {
  explicit ScalesFrame(std::size_t n_tensors);
  std::size_t n, scales_at, bytes;
};

// Check what came from rank `from`, reading only, and throw CommError, beginning with `where`:
// bits in padding, a code that is none of the three; a sum above 2 for each present rank, more
// present ranks than there are; a scale that is negative, infinite or NaN.
void check_ternary(std::span<const std::byte> frame, const Shard& shard, int from,
                   const std::string& where);
void check_sums(std::span<const std::byte> frame, const Shard& shard, int world, int from,
                const std::string& where);
void check_scales(std::span<const std::byte> frame, std::size_t n_tensors, int from,
                  const std::string& where);

}  // namespace pride
