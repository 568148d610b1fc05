// SPDX-License-Identifier: Apache-2.0
#include "rules/orthogonalise.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/kernels.h"
#include "pride/error.h"
#if PRIDE_HAVE_BLAS
#include <cblas.h>
#endif

namespace pride::rules {

#if PRIDE_HAVE_BLAS
namespace {

constexpr double kLeastNorm = kernels::kZeroFloor;
constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;

// A product of row-major matrices, c = alpha op(a) op(b) + beta c: c is (m, n), op(a) (m, k).
struct Product {
  int m, n, k;
  bool transpose_a = false, transpose_b = false;
};
void multiply(const Product& p, float alpha, const float* a, const float* b, float beta, float* c) {
  cblas_sgemm(CblasRowMajor, p.transpose_a ? CblasTrans : CblasNoTrans,
              p.transpose_b ? CblasTrans : CblasNoTrans, p.m, p.n, p.k, alpha, a,
              p.transpose_a ? p.m : p.k, b, p.transpose_b ? p.k : p.n, beta, c, p.n);
}

}  // namespace

bool has_blas() noexcept { return true; }

void Orthogonaliser::run(std::span<float> u, std::size_t rows, std::size_t cols) {
  PRIDE_CHECK(u.size() == rows * cols, "orthogonalise: ", u.size(), " values, (", rows, ", ", cols,
              ") wanted");
  PRIDE_CHECK(std::max(rows, cols) <= std::size_t{std::numeric_limits<int>::max()},
              "orthogonalise: a matrix of (", rows, ", ", cols, ")");
  const double norm = std::sqrt(kernels::sum_squares(u));
  if (norm < kLeastNorm) {  // what has decayed so far has no direction any more
    std::ranges::fill(u, 0.0f);
    return;
  }
  // the products with the shorter side: X X^T and (..) X, or of a tall matrix X^T X and X (..)
  const bool tall = rows > cols;
  const auto r = static_cast<int>(rows), c = static_cast<int>(cols), least = std::min(r, c);
  const Product gram{least, least, std::max(r, c), tall, !tall}, square{least, least, least},
      update{r, c, least};
  x_.assign(u.begin(), u.end());
  a_.resize(static_cast<std::size_t>(least) * static_cast<std::size_t>(least));
  kernels::scale(static_cast<float>(1 / norm), x_);
  for (int i = 0; i < iterations_; ++i) {
    multiply(gram, 1, x_.data(), x_.data(), 0, a_.data());
    b_ = a_;
    multiply(square, kC, a_.data(), a_.data(), kB, b_.data());
    y_ = x_;
    multiply(update, 1, tall ? x_.data() : b_.data(), tall ? b_.data() : x_.data(), kA, y_.data());
    std::swap(x_, y_);
  }
  std::ranges::copy(x_, u.begin());
}

#else

bool has_blas() noexcept { return false; }
void Orthogonaliser::run(std::span<float>, std::size_t, std::size_t) {}

#endif

Orthogonaliser::Orthogonaliser(int iterations) : iterations_(iterations) {
  PRIDE_CHECK(has_blas(),
              "orthogonalise: this build has no CBLAS: it was not found when pride was "
              "built; on Debian: libopenblas-dev");
  PRIDE_CHECK(iterations >= 1, "orthogonalise: ", iterations, " iterations");
}

}  // namespace pride::rules
