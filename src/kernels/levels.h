// Kernels of p-bit quantisation: floats to signed levels, levels to packed codes, and the vote over
// the exact sum of the ranks' levels. Same promises as kernels.h: the same bits on every
// instruction set, no allocation, no exception.
// SPDX-License-Identifier: Apache-2.0
//
// A level q of p bits is in -s..s, s = 2^(p-1) - 1, for p from 2 to 8; its code is q + s. Packed,
// the coordinates lie in runs of 512, that is 8 words of 64. A run is p lines: line b holds bit b
// of the codes, one word after the other. In the last run a line has as many words as are left.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "kernels/kernels.h"
#include "kernels/philox_key.h"

namespace pride::kernels {

inline constexpr int kMinLevelBits = 2, kMaxLevelBits = 8;
inline constexpr std::size_t kRunWords = 8;  // of 64 coordinates

constexpr int largest_level(int bits) { return (1 << (bits - 1)) - 1; }

// Calls body with `bits` as a constant.
template <int kBits = kMinLevelBits>
auto with_level_bits(int bits, const auto& body) {
  if constexpr (kBits < kMaxLevelBits) {
    if (bits != kBits) return with_level_bits<kBits + 1>(bits, body);
  }
  return body(std::integral_constant<int, kBits>());
}

// Layout of n_words * 64 packed coordinates.
struct LevelShape {
  std::size_t n_words = 0;
  int bits = kMinLevelBits;

  constexpr std::size_t size() const { return n_words * static_cast<std::size_t>(bits); }
  // Words per line in the run of this word: the distance from line b to line b + 1.
  constexpr std::size_t width(std::size_t word) const {
    return std::min(kRunWords, n_words - word / kRunWords * kRunWords);
  }
  // Index of word `word` of line 0.
  constexpr std::size_t at(std::size_t word) const {
    return word / kRunWords * kRunWords * static_cast<std::size_t>(bits) + word % kRunWords;
  }
};

// ---- Encode -------------------------------------------------------------------------------------

// u = beta1*m + (1-beta1)*g;  m = beta2*m + (1-beta2)*g.  Where either is not finite, m is
// unchanged and u is 0. Returns the first such index, or kAllFinite.  Reads 8 and writes 8 bytes
// per coordinate.
std::size_t lion_blend(std::span<const float> g, const Blend& blend, std::span<float> m,
                       std::span<float> u) noexcept;

// lion_blend and quantise in one: levels of u; 0 where it is not finite.
// Reads 8 and writes 5 bytes per coordinate.
std::size_t lion_quantise(std::span<const float> g, const Blend& blend, float inv, int largest,
                          std::span<float> m, std::span<std::int8_t> q) noexcept;

// u = beta1*m + (1-beta1)*g alone: the blend of lion_blend, without the momentum update.
void blend_only(std::span<const float> g, const Blend& blend, std::span<const float> m,
                std::span<float> u) noexcept;

// u = u + e.
void add(std::span<const float> e, std::span<float> u) noexcept;

// q = the whole number nearest to u*inv, ties to even, kept within -largest..largest.
// REQUIRES: u and inv are finite. Reads 4 bytes and writes 1 per coordinate.
void quantise(std::span<const float> u, float inv, int largest, std::span<std::int8_t> q) noexcept;

// The same, rounded up where r < y - floor(y), y = u*inv kept within -largest..largest. Unbiased if
// r is uniform in [0, 1).
void quantise(std::span<const float> u, float inv, int largest, std::span<const float> r,
              std::span<std::int8_t> q) noexcept;

// r[i] = (word >> 8) * 2^-24, the words of purpose 0x4C510000 (kernels/philox_key.h).
void uniforms(const PhiloxKey& key, std::span<float> r) noexcept;

// e = u - q*step: the quantisation error.
void keep_level_error(std::span<const float> u, std::span<const std::int8_t> q, float step,
                      std::span<float> e) noexcept;

// Packs levels into the lines from word `first` on. Codes after the last level are 0.
// REQUIRES: lines.size() == shape.size().  Reads 1 and writes bits/8 bytes per coordinate.
void pack_levels(std::span<const std::int8_t> q, LevelShape shape, std::size_t first,
                 std::span<std::uint64_t> lines) noexcept;

// The inverse, for q.size() coordinates from word `first` on.
void unpack_levels(std::span<const std::uint64_t> lines, LevelShape shape, std::size_t first,
                   std::span<std::int8_t> q) noexcept;

// x = q*step.
void levels_to_floats(std::span<const std::int8_t> q, float step, std::span<float> x) noexcept;

// ---- Vote ---------------------------------------------------------------------------------------

// The lines of each rank, and the first word to sum. The output has as many words as are summed.
struct LevelRows {
  std::span<const std::uint64_t* const> lines;  // of whole shards; at most kMaxRows
  LevelShape shape;
  std::size_t first = 0;
};

// positive = the sum of the rows' levels is above 0; where it is 0, the hash word's bit. No rows:
// all bits 0. The sum is exact for any number of rows. Returns false if some code has all bits set,
// a code of no level; the result is then unspecified.
// Reads bits/8 bytes per row and writes 1/8 per coordinate.
bool vote_levels(const LevelRows& rows, const SharedBits& ties,
                 std::span<std::uint64_t> positive) noexcept;

// The same with a sum of 0 as zero: then `nonzero` and `positive` are 0.
bool vote_levels_ternary(const LevelRows& rows, std::span<std::uint64_t> positive,
                         std::span<std::uint64_t> nonzero) noexcept;

// The same for precomputed sums: positive = S > 0, or the hash bit where S = 0; with `nonzero` not
// empty, 0 there.  REQUIRES: positive.size() == words_for(sums.size()).
void vote_sums(std::span<const std::int32_t> sums, const SharedBits& ties,
               std::span<std::uint64_t> positive, std::span<std::uint64_t> nonzero) noexcept;

}  // namespace pride::kernels
