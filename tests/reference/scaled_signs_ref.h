// Scalar oracles of the kernels in kernels/scaled_signs.h: the formulas, coordinate by coordinate.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/scaled_signs.h"
#include "reference/kernels_ref.h"

namespace pride::reference {

using kernels::Feedback;
using kernels::ScaledRow;

inline Floats feedback(const Floats& g, const Floats& m, const Floats& e, const Feedback& f) {
  Floats p(g.size());
  for (std::size_t i = 0; i < g.size(); ++i) {
    const float kept = f.keep * m[i], fresh = f.take * g[i];
    const float u = kept + fresh, scaled = f.rate * u;
    p[i] = scaled + e[i];
  }
  return p;
}

inline Words pack_signs(const Floats& p, HashWords zeros) {
  Words bits(words_for(p.size()));
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (p[i] > 0 || (p[i] == 0 && hash_bit(zeros, i))) set_bit(bits, i);
  }
  return bits;
}

inline double sum_abs(const Floats& x) {
  std::array<double, 16> p{};
  for (std::size_t i = 0; i < x.size(); ++i) p[i % 16] = p[i % 16] + std::fabs(double{x[i]});
  const auto four = [&](std::size_t a) { return (p[a] + p[a + 1]) + (p[a + 2] + p[a + 3]); };
  return (four(0) + four(4)) + (four(8) + four(12));
}

inline float signed_scale(std::span<const std::uint64_t> bits, std::size_t i, float scale) {
  return bit_at(bits, i) ? scale : -scale;
}

inline void keep_feedback(const Floats& g, const Feedback& f, const Words& bits, float scale,
                          Floats& m, Floats& e) {
  const Floats p = feedback(g, m, e, f);
  for (std::size_t i = 0; i < g.size(); ++i) {
    e[i] = p[i] - signed_scale(bits, i, scale);
    const float kept = f.keep * m[i], fresh = f.take * g[i];
    m[i] = kept + fresh;
  }
}

inline Floats mean_of_signs(std::span<const ScaledRow> rows, int divisor, const Floats& e) {
  Floats out(e.size());
  for (std::size_t i = 0; i < e.size(); ++i) {
    const auto term = [&](const ScaledRow& row) {
      return signed_scale({row.bits, i / 64 + 1}, i, row.scale);
    };
    float sum = term(rows[0]);
    for (std::size_t r = 1; r < rows.size(); ++r) sum = sum + term(rows[r]);
    const float mean = sum / static_cast<float>(divisor);
    out[i] = mean + e[i];
  }
  return out;
}

inline void adam_signs(const Words& bits, float scale, const AdamScalars& a, const Floats& v,
                       Floats& m, Floats& x) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    m[i] = signed_scale(bits, i, scale);
    const float root = std::sqrt(v[i]) / a.sqrt_bias2, below = root + a.eps;
    const float above = a.step_size * m[i], change = v[i] == 0 ? 0 : above / below;
    const float kept = decayed(x[i], a.decay, change);
    x[i] = kept - change;
  }
}

}  // namespace pride::reference
