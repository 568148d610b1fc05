// The kernels of scaled_signs.h for one word of up to 64 coordinates in plain C++: the tails of
// vector loops, and the SCALAR instruction set.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/scalar.h"
#include "kernels/scaled_signs.h"

namespace pride::kernels::scalar {

// REQUIRES, here and below: n <= 64, the coordinates of one word.
inline void feedback(const float* g, const float* m, const float* e, const Feedback& f, float* p,
                     std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) p[i] = f.rate * (f.keep * m[i] + f.take * g[i]) + e[i];
}

inline std::uint64_t pack_signs_word(const float* p, std::size_t n, std::uint64_t hash) {
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t lane = std::uint64_t{1} << i;
    if (p[i] > 0) bits |= lane;
    if (p[i] == 0) bits |= hash & lane;
  }
  return bits;
}

inline void keep_feedback_word(const float* g, const Feedback& f, std::uint64_t word, float scale,
                               float* m, float* e, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const float u = f.keep * m[i] + f.take * g[i];
    e[i] = (f.rate * u + e[i]) - signed_lr(scale, word, i);
    m[i] = u;
  }
}

// Word k of the rows.
inline void mean_of_signs_word(std::span<const ScaledRow> rows, std::size_t k, float divisor,
                               const float* e, float* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    float sum = signed_lr(rows[0].scale, rows[0].bits[k], i);
    for (const ScaledRow& row : rows.subspan(1)) sum = sum + signed_lr(row.scale, row.bits[k], i);
    out[i] = sum / divisor + e[i];
  }
}

inline void keep_remainder_word(const float* p, std::uint64_t word, float scale, float* e,
                                std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) e[i] = p[i] - signed_lr(scale, word, i);
}

inline void adam_signs_word(std::uint64_t word, float scale, const AdamScalars& a, const float* v,
                            float* m, float* x, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    m[i] = signed_lr(scale, word, i);
    const float change = (a.step_size * m[i]) / (std::sqrt(v[i]) / a.sqrt_bias2 + a.eps);
    const float decayed = x[i] * a.decay;
    x[i] = v[i] == 0 ? decayed : decayed - change;
  }
}

}  // namespace pride::kernels::scalar
