// The kernels of pride and their specification: one pass over memory each, SIMD by Highway,
// dispatched at run time. Element-wise kernels give the same bits on every instruction set: the
// formulas below are evaluated in float32 in the written order, every operation rounded, no FMA.
// SPDX-License-Identifier: Apache-2.0
//
// Packed bits: coordinate i is bit (i % 64) of word i / 64; 1 means +1. A span of n coordinates has
// words_for(n) words; unused bits of the last word are written as 0, but may be 1 in `nonzero`.
// No kernel allocates, throws, or accesses memory outside the spans. Spans must not overlap unless
// stated. Any alignment of float spans is allowed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/floats.h"
#include "base/words.h"
#include "pride/random_bits.h"
#include "pride/step_scalars.h"

namespace pride::kernels {

inline constexpr std::size_t kAllFinite = static_cast<std::size_t>(-1);
// Magnitudes below this count as zero when a scale is computed.
inline constexpr float kZeroFloor = 0x1p-100f;

// Betas of a Lion-like rule, each rounded to float once (1 - beta is rounded from double).
struct Blend {
  float beta1 = 0, one_minus_beta1 = 0, beta2 = 0, one_minus_beta2 = 0;
};

// Words of hash bits. Words w(j) = mix64(key, j) ^ flip
// (pride/random_bits.h), with flip 0 or all ones, are one row of bits: bit i of this span is bit
// shift + i from word first_word on. REQUIRES: shift < 64.
struct HashWords {
  std::uint64_t key = 0;
  std::uint64_t first_word = 0;
  std::uint64_t flip = 0;
  std::uint64_t shift = 0;

  // Bits [64 k, 64 k + 64) of the span.
  constexpr std::uint64_t at(std::size_t k) const {
    const std::uint64_t word = mix64(key, first_word + k);
    if (shift == 0) return word ^ flip;
    return (word >> shift | mix64(key, first_word + k + 1) << (64 - shift)) ^ flip;
  }
};

// The bits of the cells that values lie in: cell j of x is [j, j + 1) cells, with 1/size =
// `per_cell` as a float, and its bit is that of j modulo 2. Where x * per_cell has no fraction any
// more (from 2^23 on), or is NaN, the bit is 0.
std::uint64_t cell_word(std::span<const float> x, float per_cell) noexcept;  // REQUIRES: <= 64

// The bits of a span for zeros and ties, all inverted where `flip` is all ones. Word k is made only
// where it is used.
struct SharedBits {
  HashWords hash = {};
  const std::uint64_t* row = nullptr;  // these bits, in place of hashes
  ConstFloats x = {};                  // the cells of these values, in place of hashes
  float per_cell = 0;
  std::uint64_t flip = 0;

  SharedBits() = default;
  SharedBits(const HashWords& words) : hash(words) {}

  std::uint64_t at(std::size_t k) const noexcept;
  // The bits from coordinate `first` on. REQUIRES: a multiple of 64.
  SharedBits from(std::size_t first) const noexcept;
};

// Scalars of one apply, rounded to float once.
struct Step {
  Decay decay = {};
  float lr = 0;
};

struct AdamScalars {
  float beta1 = 0, one_minus_beta1 = 0, beta2 = 0, one_minus_beta2 = 0;
  float step_size = 0;   // lr / (1 - beta1^t)
  float sqrt_bias2 = 1;  // sqrt(1 - beta2^t)
  float eps = 0;
  Decay decay = {};
};

// ---- Encode -------------------------------------------------------------------------------------

// Per coordinate: u = beta1*m + (1-beta1)*g;  bit = u > 0, or the shared bit where u == 0 (either
// zero);  m = beta2*m + (1-beta2)*g.  Where u or the new m is not finite, m is unchanged and the
// bit is 0. Returns the first such index, or kAllFinite.
// REQUIRES: m.size() == g.size(); bits.size() == words_for(g.size()).
// Reads 8 and writes 4.125 bytes per coordinate.
std::size_t lion_sign_update(std::span<const float> g, const Blend& blend, const SharedBits& zeros,
                             std::span<float> m, std::span<std::uint64_t> bits) noexcept;

// ---- Vote and count: rows are the packed signs of the ranks, each n_words long ------------------

// Maximum number of rows of vote and count.
inline constexpr std::size_t kMaxRows = 65535;

// positive = more + than - among the rows; ties (even row counts) take the shared bit.
// No rows: all bits 0.  REQUIRES: rows[i] points at positive.size() words; rows.size() <= kMaxRows.
void vote(std::span<const std::uint64_t* const> rows, const SharedBits& ties,
          std::span<std::uint64_t> positive) noexcept;

// The same with ties as zero: `nonzero` is 0 where tied (and `positive` is 0 there too).
void vote_ternary(std::span<const std::uint64_t* const> rows, std::span<std::uint64_t> positive,
                  std::span<std::uint64_t> nonzero) noexcept;

// Bit planes of the count of +1 per coordinate: plane p (word k at planes[p * n_words + k]) holds
// bit p of the count. REQUIRES: planes.size() == n_planes * n_words with 2^n_planes > rows.size().
void count(std::span<const std::uint64_t* const> rows, std::size_t n_words, std::size_t n_planes,
           std::span<std::uint64_t> planes) noexcept;

// ---- Apply --------------------------------------------------------------------------------------

// x = x*decay - lr*s, s = +1 or -1 by the bit.  Reads 4.125 and writes 4 bytes per coordinate.
void apply_signs(std::span<const std::uint64_t> bits, Step step, std::span<float> x) noexcept;

// x = x*decay - lr*s, s = 0 where `nonzero` is 0 (then x = x*decay exactly).
void apply_ternary(std::span<const std::uint64_t> positive, std::span<const std::uint64_t> nonzero,
                   Step step, std::span<float> x) noexcept;

// x = x*decay - lr*(S/world), S = 2*count - present, as float(S) / float(world).
// Bit p of the count of word k is planes[p * plane_stride + k].
// REQUIRES: plane_stride >= words_for(x.size()); planes reaches the last word of the last plane.
void apply_counts(std::span<const std::uint64_t> planes, std::size_t n_planes,
                  std::size_t plane_stride, int present, int world, Step step,
                  std::span<float> x) noexcept;

// x = x*decay; nothing is read or written if decay is 1.
void apply_decay(float decay, std::span<float> x) noexcept;

// ---- Dense --------------------------------------------------------------------------------------

// m = momentum*m + g;  x = x*decay - lr*m, or with nesterov  x = x*decay - lr*(g + momentum*m).
void sgd_momentum(std::span<const float> g, float momentum, bool nesterov, Step step,
                  std::span<float> m, std::span<float> x) noexcept;

// u = beta1*m + (1-beta1)*g;  m = beta2*m + (1-beta2)*g;  x = x*decay - lr*sign(u), sign(0) = 0.
void dense_lion(std::span<const float> g, const Blend& blend, Step step, std::span<float> m,
                std::span<float> x) noexcept;

// m = beta1*m + (1-beta1)*g;  v = beta2*v + ((1-beta2)*g)*g;
// x = x*decay - (step_size*m) / (sqrt(v)/sqrt_bias2 + eps).   Loshchilov & Hutter 2019, Alg. 2.
void adamw(std::span<const float> g, const AdamScalars& s, std::span<float> m, std::span<float> v,
           std::span<float> x) noexcept;

// out = (rows[0] + rows[1] + ... in that order) / float(divisor). `out` may be one of the rows.
// REQUIRES: at least one row, each of out.size() floats.
void mean_rows(std::span<const float* const> rows, int divisor, std::span<float> out) noexcept;

// out = rows[0] + rows[1] + ... in that order. `out` may be one of the rows.
void sum_rows(std::span<const float* const> rows, std::span<float> out) noexcept;

// x = x*factor.
void scale(float factor, std::span<float> x) noexcept;

// Index of the first NaN or Inf, or kAllFinite.
std::size_t first_non_finite(std::span<const float> x) noexcept;

// Sum of squares in double. Sixteen partial sums (coordinate i goes to i % 16), then
// ((p0+p1)+(p2+p3))+... as a binary tree: the same bits on every instruction set.
double sum_squares(std::span<const float> x) noexcept;

}  // namespace pride::kernels
