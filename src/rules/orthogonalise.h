// Newton-Schulz iteration: the orthogonal factor of a matrix, nearly. A part of Muon's rules.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace pride::rules {

// True if this build has CBLAS, which makes the products.
bool has_blas() noexcept;

// Jordan et al. 2024, https://kellerjordan.github.io/posts/muon, with the coefficients a, b, c =
// 3.4445, -4.7750, 2.0315: X = U / |U|_F; then, `iterations` times, A = X X^T and
// X = a X + (b A + c A A) X. Singular values come near 1 (0.7 to 1.2 after five), U's singular
// vectors stay. Of a tall matrix the products are X^T X and X (..). The same numbers on the same
// CPU with the same BLAS and number of threads, others elsewhere.
class Orthogonaliser {
 public:
  // Throws InvalidArgument without CBLAS.
  explicit Orthogonaliser(int iterations);

  // In place; u is (rows, cols), row-major and finite. A norm below 2^-100 counts as zero, and
  // zeros stay zeros.
  void run(std::span<float> u, std::size_t rows, std::size_t cols);

 private:
  int iterations_;
  std::vector<float> x_, a_, b_, y_;  // kept over calls
};

}  // namespace pride::rules
