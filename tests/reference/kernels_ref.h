// Scalar oracles of the kernels: the formulas of kernels.h, coordinate by coordinate, without
// optimisation. They share nothing with src/kernels but the argument structs and the hash.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernels.h"
#include "pride/random_bits.h"

namespace pride::reference {

using kernels::AdamScalars;
using kernels::Blend;
using kernels::HashWords;
using kernels::Step;
using Words = std::vector<std::uint64_t>;
using Floats = std::vector<float>;

inline bool bit_at(std::span<const std::uint64_t> words, std::size_t i) {
  return (words[i / 64] >> (i % 64)) & 1;
}

inline void set_bit(std::span<std::uint64_t> words, std::size_t i) {
  words[i / 64] |= std::uint64_t{1} << (i % 64);
}

inline bool hash_bit(HashWords hash, std::size_t i) {
  const std::uint64_t bit = 64 * hash.first_word + hash.shift + i;
  return ((mix64(hash.key, bit / 64) >> (bit % 64)) ^ (hash.flip >> (i % 64))) & 1;
}

struct LionResult {
  Floats m;
  Words bits;
  std::size_t first_bad = kernels::kAllFinite;
};

inline LionResult lion_sign_update(const Floats& g, const Blend& b, HashWords zeros,
                                   const Floats& m) {
  const std::size_t n = g.size();
  LionResult r{m, Words(words_for(n))};
  for (std::size_t i = 0; i < n; ++i) {
    const float kept = b.beta1 * m[i], fresh = b.one_minus_beta1 * g[i];
    const float u = kept + fresh;
    const float kept2 = b.beta2 * m[i], fresh2 = b.one_minus_beta2 * g[i];
    const float next = kept2 + fresh2;
    if (!std::isfinite(u) || !std::isfinite(next)) {
      if (r.first_bad == kernels::kAllFinite) r.first_bad = i;
      continue;
    }
    if (u > 0 || (u == 0 && hash_bit(zeros, i))) set_bit(r.bits, i);
    r.m[i] = next;
  }
  return r;
}

inline int count_at(std::span<const std::uint64_t* const> rows, std::size_t i) {
  int count = 0;
  for (const std::uint64_t* row : rows) count += static_cast<int>((row[i / 64] >> (i % 64)) & 1);
  return count;
}

struct VoteResult {
  Words majority, positive, nonzero;
};

inline VoteResult vote(std::span<const std::uint64_t* const> rows, HashWords ties,
                       std::size_t n_words) {
  VoteResult r{Words(n_words), Words(n_words), Words(n_words)};
  for (std::size_t i = 0; i < n_words * 64; ++i) {
    const int more = 2 * count_at(rows, i) - static_cast<int>(rows.size());
    if (more > 0) set_bit(r.positive, i);
    if (more != 0) set_bit(r.nonzero, i);
    if (more > 0 || (more == 0 && !rows.empty() && hash_bit(ties, i))) set_bit(r.majority, i);
  }
  return r;
}

inline Words count(std::span<const std::uint64_t* const> rows, std::size_t n_words,
                   std::size_t n_planes) {
  Words planes(n_planes * n_words);
  for (std::size_t i = 0; i < n_words * 64; ++i) {
    const int c = count_at(rows, i);
    for (std::size_t p = 0; p < n_planes; ++p) {
      if ((c >> p) & 1) set_bit(std::span(planes).subspan(p * n_words, n_words), i);
    }
  }
  return planes;
}

// x*decay before the change is subtracted: the second factor where it moves x away from 0.
inline float decayed(float x, const Decay& decay, float change) {
  const bool away = (x > 0 && change < 0) || (x < 0 && change > 0);
  return x * (away ? decay.opposite : decay.same);
}

// x = x*decay - lr*s for s in {-1, 0, +1}; s = 0 is x*decay exactly.
inline float applied(float x, Step step, int s) {
  const float kept = decayed(x, step.decay, static_cast<float>(s));
  if (s == 0) return kept;
  const float change = step.lr * static_cast<float>(s);
  return kept - change;
}

inline Floats apply_ternary(const Words& positive, const Words& nonzero, Step step, Floats x) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    const int s = bit_at(nonzero, i) ? (bit_at(positive, i) ? 1 : -1) : 0;
    x[i] = applied(x[i], step, s);
  }
  return x;
}

inline Floats apply_signs(const Words& bits, Step step, Floats x) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = applied(x[i], step, bit_at(bits, i) ? 1 : -1);
  return x;
}

inline Floats apply_counts(const Words& planes, std::size_t n_planes, std::size_t stride,
                           int present, int world, Step step, Floats x) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    int c = 0;
    for (std::size_t p = 0; p < n_planes; ++p) {
      c += bit_at(std::span(planes).subspan(p * stride), i) ? 1 << p : 0;
    }
    const float mean = static_cast<float>(2 * c - present) / static_cast<float>(world);
    const float kept = decayed(x[i], step.decay, mean), change = step.lr * mean;
    x[i] = kept - change;
  }
  return x;
}

inline void sgd_momentum(const Floats& g, float momentum, bool nesterov, Step step, Floats& m,
                         Floats& x) {
  for (std::size_t i = 0; i < g.size(); ++i) {
    const float kept = momentum * m[i];
    m[i] = kept + g[i];
    const float ahead = momentum * m[i];
    const float direction = nesterov ? g[i] + ahead : m[i];
    const float left = decayed(x[i], step.decay, direction), change = step.lr * direction;
    x[i] = left - change;
  }
}

inline void dense_lion(const Floats& g, const Blend& b, Step step, Floats& m, Floats& x) {
  for (std::size_t i = 0; i < g.size(); ++i) {
    const float kept = b.beta1 * m[i], fresh = b.one_minus_beta1 * g[i];
    const float u = kept + fresh;
    const float kept2 = b.beta2 * m[i], fresh2 = b.one_minus_beta2 * g[i];
    m[i] = kept2 + fresh2;
    const float change = step.lr * static_cast<float>((u > 0) - (u < 0));
    const float left = decayed(x[i], step.decay, change);
    x[i] = left - change;
  }
}

inline void adamw(const Floats& g, const AdamScalars& s, Floats& m, Floats& v, Floats& x) {
  for (std::size_t i = 0; i < g.size(); ++i) {
    const float kept = s.beta1 * m[i], fresh = s.one_minus_beta1 * g[i];
    m[i] = kept + fresh;
    const float kept2 = s.beta2 * v[i], scaled = s.one_minus_beta2 * g[i];
    const float fresh2 = scaled * g[i];
    v[i] = kept2 + fresh2;
    const float root = std::sqrt(v[i]) / s.sqrt_bias2;
    const float below = root + s.eps, above = s.step_size * m[i];
    const float change = above / below, left = decayed(x[i], s.decay, change);
    x[i] = left - change;
  }
}

inline Floats sum_rows(std::span<const float* const> rows, std::size_t n) {
  Floats out(rows[0], rows[0] + n);
  for (const float* row : rows.subspan(1)) {
    for (std::size_t i = 0; i < n; ++i) out[i] = out[i] + row[i];
  }
  return out;
}

inline double sum_squares(const Floats& x) {
  std::array<double, 16> p{};
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double value = x[i], square = value * value;
    p[i % 16] = p[i % 16] + square;
  }
  const auto four = [&](int a) { return (p[a] + p[a + 1]) + (p[a + 2] + p[a + 3]); };
  return (four(0) + four(4)) + (four(8) + four(12));
}

}  // namespace pride::reference
