// The float kernels for a few coordinates in plain C++: the tails of vector loops, and the SCALAR
// instruction set. Same operations in the same order as the vector code.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"
#include "pride/random_bits.h"

namespace pride::kernels::scalar {

inline bool is_finite(float x) { return std::abs(x) <= 3.40282347e38f; }

// Result of lion_sign_update for one word of up to 64 coordinates.
struct LionWord {
  std::uint64_t bits = 0;
  std::uint64_t bad = 0;  // lanes that are not finite
};

// REQUIRES: n <= 64; `hash` is the word's hash.
inline LionWord lion_word(const float* g, std::size_t n, const Blend& b, std::uint64_t hash,
                          float* m) {
  LionWord out;
  for (std::size_t i = 0; i < n; ++i) {
    const float u = b.beta1 * m[i] + b.one_minus_beta1 * g[i];
    const float next = b.beta2 * m[i] + b.one_minus_beta2 * g[i];
    const std::uint64_t lane = std::uint64_t{1} << i;
    if (!is_finite(u) || !is_finite(next)) {
      out.bad |= lane;
      continue;
    }
    if (u > 0) out.bits |= lane;
    if (u == 0) out.bits |= hash & lane;
    m[i] = next;
  }
  return out;
}

// lr with the sign of s = +1 (bit set) or -1.
inline float signed_lr(float lr, std::uint64_t word, std::size_t i) {
  return (word >> i) & 1 ? lr : -lr;
}

inline float sum_at(std::span<const float* const> rows, std::size_t i) {
  float sum = rows[0][i];
  for (std::size_t r = 1; r < rows.size(); ++r) sum = sum + rows[r][i];
  return sum;
}

inline std::size_t first_non_finite(const float* x, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    if (!is_finite(x[i])) return i;
  }
  return kAllFinite;
}

}  // namespace pride::kernels::scalar
