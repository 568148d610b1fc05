// Kernels that pack n_digits numbers below `base` into 32 bits. Bit planes would take
// bit_width(base - 1) bits per number.
// SPDX-License-Identifier: Apache-2.0
//
// A group of n_digits words of 64 coordinates becomes 64 packed words: packed word c of the group
// holds coordinate c of each word, word 0 first. With V the number with these base-`base` digits
// (word 0 the most significant) and M = base^n_digits, the packed word is
//     f = ceil(V * 2^32 / M),
// the fraction V/M rounded up. Decoding multiplies f by the base: the upper 32 bits of the product
// are the next digit and the lower ones the next f, without a division. It is exact: every step is
// exact in integers, so the digits are the first n_digits of f/2^32, and these are V's because V/M
// <= f/2^32 < (V+1)/M, which holds as M <= 2^32. Any f decodes to digits below `base`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kernels.h"

namespace pride::kernels {

// REQUIRES, below: base >= 2, n_digits >= 1 and base^n_digits < 2^32.
struct Radix {
  std::uint32_t base = 0;
  std::size_t n_digits = 0;
};

// The maximum number of digits in 32 bits.  REQUIRES: base >= 2.
constexpr Radix radix_of(std::uint32_t base) {
  Radix radix{base, 0};
  for (std::uint64_t m = base; m < (std::uint64_t{1} << 32); m *= base) ++radix.n_digits;
  return radix;
}

// Bit planes, as `count` writes them, to packed words. Bit p of word k is in
// planes[p * plane_stride + k].
// REQUIRES: packed.size() is a whole number of groups; every plane has their words; all numbers are
// below the base.
// Reads n_planes/8 and writes 4/n_digits bytes per coordinate.
void pack_digits(std::span<const std::uint64_t> planes, std::size_t n_planes,
                 std::size_t plane_stride, Radix radix, std::span<std::uint32_t> packed) noexcept;

// The inverse: the numbers of words [first_word, first_word + n_words) as bit planes. Bit p of word
// first_word + k goes to planes[p * plane_stride + k]. REQUIRES: `packed` has whole groups, up to
// the last word; 2^n_planes >= base. Reads 4/n_digits and writes n_planes/8 bytes per coordinate.
void unpack_digits(std::span<const std::uint32_t> packed, Radix radix, std::size_t first_word,
                   std::size_t n_words, std::size_t n_planes, std::size_t plane_stride,
                   std::span<std::uint64_t> planes) noexcept;

// apply_counts from packed words: x = x*decay - lr*(S/world), S = 2*count - present, as
// float(S) / float(world). x begins at coordinate 64 * first_word of `packed`.
// REQUIRES: `packed` has whole groups, up to the last coordinate of x.
// Reads 4 + 4/n_digits and writes 4 bytes per coordinate.
void apply_packed_counts(std::span<const std::uint32_t> packed, Radix radix, std::size_t first_word,
                         int present, int world, Step step, std::span<float> x) noexcept;

// The largest number in words [first_word, first_word + n_words); 0 if there are none.
// REQUIRES: as above.
std::uint32_t max_digit(std::span<const std::uint32_t> packed, Radix radix, std::size_t first_word,
                        std::size_t n_words) noexcept;

}  // namespace pride::kernels
