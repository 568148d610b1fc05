// Newton-Schulz in double with plain loops, written from Jordan's description of Muon.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace pride::reference {

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

inline Dense newton_schulz(Dense x, int iterations) {
  double squares = 0;
  for (const double e : x.v) squares += e * e;
  if (squares == 0) return x;
  for (double& e : x.v) e /= std::sqrt(squares);
  const bool tall = x.rows > x.cols;
  if (tall) x = transposed(x);
  for (int i = 0; i < iterations; ++i) {
    const Dense a = times(x, transposed(x));
    x = sum(3.4445, x, 1, times(sum(-4.7750, a, 2.0315, times(a, a)), x));
  }
  return tall ? transposed(x) : x;
}

}  // namespace pride::reference
