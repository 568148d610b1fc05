// Newton-Schulz iteration: the orthogonal factor of a matrix, nearly. A part of Muon's rules.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace pride::rules {

// True if this build has CBLAS, which computes the products.
bool has_blas() noexcept;

// A matrix inside a row-major one: row i begins at data + i stride. REQUIRES: cols <= stride.
struct MatrixSpan {
  float* data = nullptr;
  std::size_t rows = 0, cols = 0, stride = 0;

  std::size_t shorter() const noexcept { return rows < cols ? rows : cols; }
  std::size_t longer() const noexcept { return rows < cols ? cols : rows; }
};

// Multiplications and additions of Orthogonaliser for a matrix with these sides; for its factor.
double newton_schulz_operations(std::size_t shorter, std::size_t longer, int iterations);
double factor_operations(std::size_t shorter, std::size_t longer, int iterations);

// Jordan et al. 2024, https://kellerjordan.github.io/posts/muon, with the coefficients a, b, c =
// 3.4445, -4.7750, 2.0315: X = U / |U|_F; then, `iterations` times, A = X X^T and
// X = a X + (b A + c A A) X. Singular values come near 1 (0.7 to 1.2 after five), U's singular
// vectors stay. If X is tall, the products are X^T X and X (..). Each iteration multiplies X by a
// polynomial of A, so the result is P U / |U|_F, with P a polynomial of the first A. If the longer
// side exceeds twice the shorter, P is computed first: that takes fewer operations. Results are
// reproducible only on the same CPU with the same BLAS and number of threads.
class Orthogonaliser {
 public:
  // Throws InvalidArgument without CBLAS.
  explicit Orthogonaliser(int iterations);

  // In place; u is finite. A norm below 2^-100 counts as zero, and zeros stay zeros.
  void run(const MatrixSpan& u);

  // The same with the symmetric factor P of shorter() squared values: computed from u if `fresh`,
  // otherwise from an earlier u, which takes one product instead of 5 to 15.
  void run(const MatrixSpan& u, std::span<float> factor, bool fresh);

 private:
  bool load(const MatrixSpan& u);  // x_ = U / |U|_F; false if U is zero
  void store(const MatrixSpan& u) const;
  void iterate(const MatrixSpan& u);
  void make_factor(const MatrixSpan& u, std::span<float> factor);

  int iterations_;
  std::vector<float> x_, y_, a_, q_, p_, t_;  // kept over calls
};

}  // namespace pride::rules
