// Kernels on received counts in bit planes: counts of whole nodes, added up and voted on without
// conversion to numbers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kernels.h"

namespace pride::kernels {

// Bit p of the number of word k is words[p * stride + k].
struct Planes {
  std::span<const std::uint64_t> words;
  std::size_t n = 0;  // planes
  std::size_t stride = 0;
};
struct MutablePlanes {
  std::span<std::uint64_t> words;
  std::size_t n = 0;
  std::size_t stride = 0;
};

// sum += more, in words [0, n_words).
// REQUIRES: more.n <= sum.n; the sums stay below 2^sum.n; no overlap.
// Reads (more.n + sum.n)/8 and writes sum.n/8 bytes per coordinate.
void add_planes(Planes more, std::size_t n_words, MutablePlanes sum) noexcept;

// `vote` of counts: positive = 2*count > present; ties take the hash word's bit. All bits are 0 for
// present = 0.
// REQUIRES: no count above `present`; 2^counts.n > present.
// Reads counts.n/8 and writes 1/8 bytes per coordinate.
void vote_planes(Planes counts, int present, const SharedBits& ties,
                 std::span<std::uint64_t> positive) noexcept;

// `vote_ternary` of counts.
void vote_planes_ternary(Planes counts, int present, std::span<std::uint64_t> positive,
                         std::span<std::uint64_t> nonzero) noexcept;

}  // namespace pride::kernels
