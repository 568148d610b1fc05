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

// REQUIRES, here and below: n <= 64, the coordinates of one word.
inline void apply_signs_word(std::uint64_t word, Step step, float* x, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) x[i] = x[i] * step.decay - signed_lr(step.lr, word, i);
}

inline void apply_ternary_word(std::uint64_t positive, std::uint64_t nonzero, Step step, float* x,
                               std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const float decayed = x[i] * step.decay;
    x[i] = (nonzero >> i) & 1 ? decayed - signed_lr(step.lr, positive, i) : decayed;
  }
}

// `planes` points at the word's first plane.
inline void apply_counts_word(const std::uint64_t* planes, std::size_t n_planes, std::size_t stride,
                              int present, float world, Step step, float* x, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    std::uint32_t count = 0;
    for (std::size_t p = 0; p < n_planes; ++p) {
      count |= static_cast<std::uint32_t>((planes[p * stride] >> i) & 1) << p;
    }
    const int sum = 2 * static_cast<int>(count) - present;
    x[i] = x[i] * step.decay - step.lr * (static_cast<float>(sum) / world);
  }
}

inline void sgd_momentum(const float* g, float momentum, bool nesterov, Step step, float* m,
                         float* x, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    m[i] = momentum * m[i] + g[i];
    const float change = nesterov ? g[i] + momentum * m[i] : m[i];
    x[i] = x[i] * step.decay - step.lr * change;
  }
}

inline void dense_lion(const float* g, const Blend& b, Step step, float* m, float* x,
                       std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const float u = b.beta1 * m[i] + b.one_minus_beta1 * g[i];
    m[i] = b.beta2 * m[i] + b.one_minus_beta2 * g[i];
    const float sign = u > 0 ? 1.0f : u < 0 ? -1.0f : 0.0f;
    x[i] = x[i] * step.decay - step.lr * sign;
  }
}

inline void adamw(const float* g, const AdamScalars& s, float* m, float* v, float* x,
                  std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    m[i] = s.beta1 * m[i] + s.one_minus_beta1 * g[i];
    v[i] = s.beta2 * v[i] + (s.one_minus_beta2 * g[i]) * g[i];
    x[i] = x[i] * s.decay - (s.step_size * m[i]) / (std::sqrt(v[i]) / s.sqrt_bias2 + s.eps);
  }
}

inline float sum_at(std::span<const float* const> rows, std::size_t i) {
  float sum = rows[0][i];
  for (std::size_t r = 1; r < rows.size(); ++r) sum = sum + rows[r][i];
  return sum;
}

inline void scale(float factor, float* x, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) x[i] = x[i] * factor;
}

inline std::size_t first_non_finite(const float* x, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    if (!is_finite(x[i])) return i;
  }
  return kAllFinite;
}

}  // namespace pride::kernels::scalar
