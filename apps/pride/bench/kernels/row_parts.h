// Shared by the rows of `pride bench kernels`: arrays, settings, and work block by block.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "bench/kernels/add_row.h"
#include "kernels/kernels.h"
#include "kernels/philox_key.h"

namespace pride::app::row_parts {

using namespace kernels;

using Words = std::span<std::uint64_t>;
using Floats = std::span<float>;
using Lines = std::span<const std::uint64_t* const>;

// Decay takes off one unit in the last place, so that parameters of repeated steps stay in range
// and do not become denormal.
inline constexpr Step kStep{.decay = 0x1.fffffep-1f, .lr = 3e-4f};
inline constexpr Blend kBlend{0.9f, 0.1f, 0.99f, 0.01f};
inline constexpr HashWords kHash{.key = 1, .first_word = 0};
inline constexpr PhiloxKey kKey{.seed = 7, .step = 3, .rank = 1};

// Arrays that a kernel reads, writes, or both.
inline constexpr Piece<float> kIn{4}, kOut{4}, kInOut{8};
inline constexpr Piece<BFloat16> kHalves{2};

inline double per_bit(std::size_t n) { return static_cast<double>(n) / 8; }
inline Piece<std::uint64_t> bits(std::size_t n = 1) { return {per_bit(n), n}; }
inline Pointers<std::uint64_t> sign_rows(std::size_t n) { return {{per_bit(n), n}}; }
inline Pointers<float> float_rows(std::size_t n) { return {{4 * static_cast<double>(n), n}}; }
inline std::size_t n_words(const KernelArrays& a) { return a.n_words(); }

inline std::string per_row(std::size_t n) { return "/" + std::to_string(n); }

inline auto make_positive(std::size_t i) {
  return [i](KernelArrays& a) {
    for (float& value : a.array(i)) value = std::abs(value);
  };
}

// Several kernels of a method work on one block, which stays in the cache.
inline constexpr std::size_t kBlock = 4096;  // coordinates
struct Block {
  std::size_t at;            // first coordinate
  std::span<float> u;        // working memory of the block
  std::span<std::int8_t> q;  // working memory for levels
};

inline Floats cut(Floats x, const Block& b) { return x.subspan(b.at, b.u.size()); }
inline Words cut(Words lines, const Block&) { return lines; }

// Calls body(block, its part of the floats, all bits) for each block; returns the results' sum.
template <typename Body>
auto by_block(Body body) {
  return [body](Floats first, auto... more) {
    alignas(64) std::array<float, kBlock> u;
    alignas(64) std::array<std::int8_t, kBlock> q;
    decltype(body(Block{}, first, more...)) sum{};
    for (std::size_t at = 0; at < first.size(); at += kBlock) {
      const std::size_t k = std::min(kBlock, first.size() - at);
      const Block b{at, std::span(u).first(k), std::span(q).first(k)};
      sum += body(b, cut(first, b), cut(more, b)...);
    }
    return sum;
  };
}

}  // namespace pride::app::row_parts

namespace pride::app {

// Adds rows for levels of p = 2, 4 and 8 bits: their encoding, and votes of n ranks.
void add_levels(std::vector<KernelRow>& rows);
void add_level_votes(std::vector<KernelRow>& rows, std::size_t n);

}  // namespace pride::app
