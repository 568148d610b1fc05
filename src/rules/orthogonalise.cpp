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
namespace {

// If true, the factor is computed first and multiplies the matrix once, not in each iteration.
bool by_factor(std::size_t shorter, std::size_t longer) { return longer > 2 * shorter; }

}  // namespace

double newton_schulz_operations(std::size_t shorter, std::size_t longer, int iterations) {
  const auto r = static_cast<double>(shorter), c = static_cast<double>(longer),
             n = 1.0 * iterations;
  if (by_factor(shorter, longer)) {
    return factor_operations(shorter, longer, iterations) + 2 * r * r * c;
  }
  return n * (3 * r * r * c + r * r * r);  // X X^T and A A take half: they are symmetric
}

double factor_operations(std::size_t shorter, std::size_t longer, int iterations) {
  const auto r = static_cast<double>(shorter), c = static_cast<double>(longer),
             n = 1.0 * iterations;
  // X X^T; in each iteration A A, two products for A except the last, one for P except the first
  return r * r * c + (n + 4 * (n - 1) + 2 * (n - 1)) * r * r * r;
}

#if PRIDE_HAVE_BLAS
namespace {

constexpr double kLeastNorm = kernels::kZeroFloor;
constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;

using Matrix = std::vector<float>;

std::size_t squared(int n) { return static_cast<std::size_t>(n) * static_cast<std::size_t>(n); }

// a = x x^T, or x^T x if x is tall. Fills both triangles.
void gram(const Matrix& x, int rows, int cols, Matrix& a) {
  const bool tall = rows > cols;
  const int n = std::min(rows, cols);
  a.resize(squared(n));
  cblas_ssyrk(CblasRowMajor, CblasUpper, tall ? CblasTrans : CblasNoTrans, n, std::max(rows, cols),
              1, x.data(), cols, 0, a.data(), n);
  for (int i = 1; i < n; ++i) {
    for (int j = 0; j < i; ++j) a[squared(n) / n * i + j] = a[squared(n) / n * j + i];
  }
}

// The upper triangle of q = b a + c a a, for a symmetric a with both triangles.
void polynomial(const Matrix& a, int n, Matrix& q) {
  q = a;
  cblas_ssyrk(CblasRowMajor, CblasUpper, CblasNoTrans, n, n, kC, a.data(), n, kB, q.data(), n);
}

// y = alpha y + q x, or alpha y + x q if x is tall. Reads only the upper triangle of q.
void multiply(const float* q, const float* x, int rows, int cols, float alpha, Matrix& y) {
  const bool tall = rows > cols;
  cblas_ssymm(CblasRowMajor, tall ? CblasRight : CblasLeft, CblasUpper, rows, cols, 1, q,
              std::min(rows, cols), x, cols, alpha, y.data(), cols);
}

}  // namespace

bool has_blas() noexcept { return true; }

bool Orthogonaliser::load(const MatrixSpan& u) {
  PRIDE_CHECK(u.longer() <= std::size_t{std::numeric_limits<int>::max()},
              "orthogonalise: a matrix of (", u.rows, ", ", u.cols, ")");
  x_.resize(u.rows * u.cols);
  for (std::size_t i = 0; i < u.rows; ++i) {
    std::copy_n(u.data + i * u.stride, u.cols, x_.data() + i * u.cols);
  }
  const double norm = std::sqrt(kernels::sum_squares(x_));
  if (norm < kLeastNorm) {  // a matrix that has decayed this far has no direction
    std::ranges::fill(x_, 0.0f);
    return false;
  }
  kernels::scale(static_cast<float>(1 / norm), x_);
  return true;
}

void Orthogonaliser::store(const MatrixSpan& u) const {
  for (std::size_t i = 0; i < u.rows; ++i) {
    std::copy_n(x_.data() + i * u.cols, u.cols, u.data + i * u.stride);
  }
}

void Orthogonaliser::iterate(const MatrixSpan& u) {
  const auto rows = static_cast<int>(u.rows), cols = static_cast<int>(u.cols);
  for (int i = 0; i < iterations_; ++i) {
    gram(x_, rows, cols, a_);
    polynomial(a_, std::min(rows, cols), q_);
    y_ = x_;
    multiply(q_.data(), x_.data(), rows, cols, kA, y_);
    std::swap(x_, y_);
  }
}

// Q = a I + b A + c A A, then P = Q P and A = Q A Q. All of them are symmetric and commute.
void Orthogonaliser::make_factor(const MatrixSpan& u, std::span<float> factor) {
  const auto n = static_cast<int>(u.shorter());
  gram(x_, static_cast<int>(u.rows), static_cast<int>(u.cols), a_);
  for (int i = 0; i < iterations_; ++i) {
    polynomial(a_, n, q_);
    for (std::size_t k = 0; k < squared(n); k += static_cast<std::size_t>(n) + 1) q_[k] += kA;
    if (i == 0) {
      p_ = q_;
      for (int r = 1; r < n; ++r) {
        for (int c = 0; c < r; ++c) p_[squared(n) / n * r + c] = p_[squared(n) / n * c + r];
      }
    } else {
      t_ = p_;
      multiply(q_.data(), t_.data(), n, n, 0, p_);
    }
    if (i + 1 == iterations_) break;
    t_.resize(squared(n));
    multiply(q_.data(), a_.data(), n, n, 0, t_);
    multiply(q_.data(), t_.data(), n, n, 0, a_);
  }
  std::ranges::copy(p_, factor.begin());
}

void Orthogonaliser::run(const MatrixSpan& u) {
  if (by_factor(u.shorter(), u.longer())) {
    std::vector<float> factor(u.shorter() * u.shorter());
    return run(u, factor, true);
  }
  if (load(u)) iterate(u);
  store(u);
}

void Orthogonaliser::run(const MatrixSpan& u, std::span<float> factor, bool fresh) {
  PRIDE_CHECK(factor.size() == u.shorter() * u.shorter(), "orthogonalise: a factor of ",
              factor.size(), " values for a matrix of (", u.rows, ", ", u.cols, ")");
  const bool any = load(u);
  if (fresh) std::ranges::fill(factor, 0.0f);
  if (any && fresh) make_factor(u, factor);
  if (any) {
    y_.resize(x_.size());
    multiply(factor.data(), x_.data(), static_cast<int>(u.rows), static_cast<int>(u.cols), 0, y_);
    std::swap(x_, y_);
  }
  store(u);
}

#else

bool has_blas() noexcept { return false; }
void Orthogonaliser::run(const MatrixSpan&) {}
void Orthogonaliser::run(const MatrixSpan&, std::span<float>, bool) {}

#endif

Orthogonaliser::Orthogonaliser(int iterations) : iterations_(iterations) {
  PRIDE_CHECK(has_blas(),
              "orthogonalise: this build has no CBLAS: it was not found when pride was "
              "built; on Debian: libopenblas-dev");
  PRIDE_CHECK(iterations >= 1, "orthogonalise: ", iterations, " iterations");
}

}  // namespace pride::rules
