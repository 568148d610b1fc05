// Newton-Schulz in double with plain loops, written from Jordan's description of Muon.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace pride::reference {

// Five iterations multiply a rounding of 2^-24 by up to 3.4445^5 = 485, over sums of 100 terms.
inline constexpr double kNewtonSchulzTolerance = 2e-3;

// (rows, cols), row-major
struct Dense {
  std::size_t rows = 0, cols = 0;
  std::vector<double> v = {};

  double at(std::size_t i, std::size_t j) const { return v[i * cols + j]; }
};

inline Dense transposed(const Dense& x) {
  Dense t{x.cols, x.rows, std::vector<double>(x.v.size())};
  for (std::size_t i = 0; i < x.rows; ++i) {
    for (std::size_t j = 0; j < x.cols; ++j) t.v[j * x.rows + i] = x.at(i, j);
  }
  return t;
}

inline Dense times(const Dense& a, const Dense& b) {
  Dense c{a.rows, b.cols, std::vector<double>(a.rows * b.cols, 0.0)};
  for (std::size_t i = 0; i < a.rows; ++i) {
    for (std::size_t k = 0; k < a.cols; ++k) {
      for (std::size_t j = 0; j < b.cols; ++j) c.v[i * b.cols + j] += a.at(i, k) * b.at(k, j);
    }
  }
  return c;
}

// alpha a + beta b
inline Dense sum(double alpha, const Dense& a, double beta, const Dense& b) {
  Dense c = a;
  for (std::size_t i = 0; i < c.v.size(); ++i) c.v[i] = alpha * a.v[i] + beta * b.v[i];
  return c;
}

// x / |x|, and zeros of zeros.
inline Dense unit(Dense x) {
  double squares = 0;
  for (const double e : x.v) squares += e * e;
  for (double& e : x.v) e /= squares == 0 ? 1 : std::sqrt(squares);
  return x;
}

// P x / |x|, or of a tall x  x P / |x|, for a symmetric P.
inline Dense by_factor(const Dense& p, const Dense& x) {
  return x.rows > x.cols ? times(unit(x), p) : times(p, unit(x));
}

// If `factor` is not null, it becomes the P with which by_factor() gives the same.
inline Dense newton_schulz(const Dense& u, int iterations, Dense* factor = nullptr) {
  const bool tall = u.rows > u.cols;
  Dense x = tall ? transposed(unit(u)) : unit(u);
  Dense p{x.rows, x.rows, std::vector<double>(x.rows * x.rows, 0.0)};
  for (std::size_t i = 0; i < x.rows; ++i) p.v[i * x.rows + i] = 1;
  for (int i = 0; i < iterations; ++i) {
    const Dense a = times(x, transposed(x)), q = sum(-4.7750, a, 2.0315, times(a, a));
    x = sum(3.4445, x, 1, times(q, x));
    p = sum(3.4445, p, 1, times(q, p));
  }
  if (factor != nullptr) *factor = p;
  return tall ? transposed(x) : x;
}

}  // namespace pride::reference
