// SPDX-License-Identifier: Apache-2.0
#include "methods/orthogonal_blend.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "codecs/hash_keys.h"
#include "kernels/levels.h"
#include "kernels/scaled_signs.h"
#include "methods/options.h"
#include "pride/error.h"

namespace pride::methods {
namespace {

constexpr const char* kNotMatrices = "embed,wte,wpe,lm_head,head,position";

bool holds_one_of(const std::string& name, const std::string& words) {
  std::istringstream list(words);
  for (std::string word; std::getline(list, word, ',');) {
    if (!word.empty() && name.find(word) != std::string::npos) return true;
  }
  return false;
}

kernels::Blend betas_of(const std::string& method, const MethodContext& ctx) {
  const double beta1 = number_option(method, ctx, "matrix_beta1", 0, 1);
  const double beta2 = number_option(method, ctx, "matrix_beta2", 0, 1);
  return {static_cast<float>(beta1), static_cast<float>(1 - beta1), static_cast<float>(beta2),
          static_cast<float>(1 - beta2)};
}

}  // namespace

std::vector<Matrix> matrices_of(const Layout& layout, const std::string& words) {
  std::vector<Matrix> matrices;
  for (std::size_t i = 0; i < layout.tensors().size(); ++i) {
    const TensorSlot& slot = layout.tensors()[i];
    const auto& shape = slot.spec.shape;
    if (shape.size() < 2 || slot.n == 0 || holds_one_of(slot.spec.name, words)) continue;
    const auto rows = static_cast<std::size_t>(shape[0]);
    if (rows > 1 && slot.n / rows > 1) matrices.push_back({i, rows, slot.n / rows});
  }
  return matrices;
}

std::vector<MethodOption> OrthogonalBlend::options(const std::string& matrix_scale) {
  return {{"iterations", "5", "Newton-Schulz iterations for a matrix, 1 to 20"},
          {"matrix_beta1", "0.9025", "beta1 of matrices: share of the momentum in their blend"},
          {"matrix_beta2", "0.95", "beta2 of matrices: their momentum's memory"},
          {"not_matrices", kNotMatrices,
           "words, separated by commas: tensors whose names hold one of them are not taken as "
           "matrices, nor are those with one dimension"},
          {"matrix_scale", matrix_scale,
           "factor on the learning rate of a matrix: 'none'; 'fan-in', the least fan-in of all "
           "matrices over its own; or 'rms', 0.2 times the root of its longer side"}};
}

OrthogonalBlend::OrthogonalBlend(const std::string& method, const MethodContext& ctx)
    : betas_(betas_of(method, ctx)),
      orthogonaliser_(static_cast<int>(whole_option(method, ctx, "iterations", 1, 20))),
      of_tensor_(ctx.layout.tensors().size()) {
  const auto rule = word_option(method, ctx, "matrix_scale", {"none", "fan-in", "rms"});
  const auto matrices = matrices_of(ctx.layout, ctx.options.at("not_matrices"));
  if (matrices.empty()) return;
  const std::size_t least = std::ranges::min(matrices, {}, &Matrix::cols).cols;
  for (const Matrix& matrix : matrices) {
    const auto longer = static_cast<float>(std::max(matrix.rows, matrix.cols));
    const float scales[] = {1, static_cast<float>(least) / static_cast<float>(matrix.cols),
                            0.2f * std::sqrt(longer)};
    auto held = std::make_unique<Held>();
    held->matrix = matrix;
    held->offset = ctx.layout.tensors()[matrix.tensor].offset;
    held->scale = scales[rule];
    of_tensor_[matrix.tensor] = std::move(held);
  }
}

float OrthogonalBlend::step_scale(std::size_t tensor) const noexcept {
  return has(tensor) ? of_tensor_[tensor]->scale : 1.0f;
}

bool OrthogonalBlend::blend(std::size_t tensor, std::span<const float> g, std::span<float> m) {
  Held& held = *of_tensor_[tensor];
  held.u.resize(g.size());
  held.finite = kernels::lion_blend(g, betas_, m, held.u) == kernels::kAllFinite;
  if (held.finite) orthogonaliser_.run(held.u, held.matrix.rows, held.matrix.cols);
  return held.finite;
}

std::optional<NonFinite> OrthogonalBlend::encode(const Piece& piece, const StepContext& ctx,
                                                 std::span<std::uint64_t> signs) const {
  const Held& held = *of_tensor_[piece.tensor];
  if (!held.finite) {
    std::ranges::fill(signs, std::uint64_t{0});
    return NonFinite{ctx.rank, static_cast<std::uint32_t>(piece.tensor)};
  }
  const kernels::HashWords zeros{zero_key(ctx.seed, ctx.step, ctx.rank), piece.begin / 64};
  kernels::pack_signs(std::span(held.u).subspan(piece.begin - held.offset, piece.n()), zeros,
                      signs);
  return std::nullopt;
}

}  // namespace pride::methods
