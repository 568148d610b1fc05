// SPDX-License-Identifier: Apache-2.0
#include "torch/newton_schulz.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <vector>

namespace pride {
namespace {

// Jordan et al. 2024, https://kellerjordan.github.io/posts/muon
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
constexpr double kLeastNorm = 0x1p-100;                      // below it a matrix counts as zero
constexpr std::int64_t kMostValues = std::int64_t{1} << 26;  // of a batch, and of each temporary

// Matrices (n, rows, cols), each divided by its norm.
at::Tensor normalised(const at::Tensor& x) {
  const at::Tensor norm =
      at::linalg_vector_norm(x, 2, at::IntArrayRef{1, 2}, /*keepdim=*/true, at::kDouble)
          .to(at::kFloat);
  return at::where(norm < kLeastNorm, at::zeros_like(x), x / norm.clamp_min(kLeastNorm));
}

// The iterates of wide matrices (n, rows, cols).
at::Tensor iterated(at::Tensor x, int iterations) {
  for (int i = 0; i < iterations; ++i) {
    const at::Tensor gram = at::bmm(x, x.transpose(1, 2));
    const at::Tensor factor = at::baddbmm(gram, gram, gram, /*beta=*/kB, /*alpha=*/kC);
    x = at::baddbmm(x, factor, x, /*beta=*/kA);
  }
  return x;
}

}  // namespace

void newton_schulz(std::span<const at::Tensor> matrices, int iterations, at::ScalarType products) {
  const c10::NoGradGuard no_grad;
  const bool tall = matrices.front().size(0) > matrices.front().size(1);
  const auto size = static_cast<std::size_t>(
      std::max<std::int64_t>(1, kMostValues / std::max<std::int64_t>(1, matrices.front().numel())));
  for (std::size_t first = 0; first < matrices.size(); first += size) {
    const auto batch = matrices.subspan(first, std::min(size, matrices.size() - first));
    at::Tensor x = at::stack(std::vector<at::Tensor>(batch.begin(), batch.end()));
    if (tall) x = x.transpose(1, 2);
    x = iterated(normalised(x).to(products), iterations);
    if (tall) x = x.transpose(1, 2);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      batch[i].copy_(x[static_cast<std::int64_t>(i)]);
    }
  }
}

}  // namespace pride
