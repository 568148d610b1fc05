// SPDX-License-Identifier: Apache-2.0
#include "methods/orthogonal_blend.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <sstream>

#include "kernels/levels.h"
#include "kernels/scaled_signs.h"
#include "methods/options.h"
#include "pride/error.h"

namespace pride::methods {
namespace {

constexpr const char* kNotMatrices = "embed,wte,wpe,lm_head,head,position";
constexpr const char* kFused = "c_attn,qkv,in_proj,query_key_value";

bool holds_one_of(const std::string& name, const std::string& words) {
  std::istringstream list(words);
  for (std::string word; std::getline(list, word, ',');) {
    word.erase(0, word.find_first_not_of(' '));
    word.erase(word.find_last_not_of(' ') + 1);
    if (!word.empty() && name.find(word) != std::string::npos) return true;
  }
  return false;
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

std::vector<rules::MatrixSpan> parts_of(const Matrix& matrix, bool fused, std::span<float> values) {
  const auto [tensor, rows, cols] = matrix;
  if (!fused || matrix.longer() != 3 * matrix.shorter()) return {{values.data(), rows, cols, cols}};
  std::vector<rules::MatrixSpan> parts;
  for (std::size_t i = 0; i < 3; ++i) {
    const std::size_t side = matrix.shorter();
    parts.push_back({values.data() + i * side * (rows > cols ? side : 1), side, side, cols});
  }
  return parts;
}

std::vector<MethodOption> OrthogonalBlend::options(const std::string& matrix_scale) {
  return {{"iterations", "5", "Newton-Schulz iterations for a matrix, 1 to 20"},
          {"every", "1",
           "steps for which a matrix keeps its Newton-Schulz factor; 1 iterates in every step "
           "(above 1: one product per step, 1 float of state)"},
          {"not_matrices", kNotMatrices,
           "words, separated by commas: a tensor whose name contains one of them is not treated "
           "as a matrix; nor is a tensor with one dimension"},
          {"fused", kFused,
           "words, separated by commas: a matrix is split in three (query, key and value) if its "
           "name contains one of them and its longer side is three times the shorter"},
          {"matrix_scale", matrix_scale,
           "factor on a matrix's learning rate: 'none'; 'fan-in', the smallest fan-in of all "
           "matrices divided by its own; or 'rms', 0.2 times the square root of its longer side"}};
}

OrthogonalBlend::OrthogonalBlend(const std::string& method, const MethodContext& ctx,
                                 StateTable& state, StateKind kind)
    : space_(ctx.space),
      on_device_(ctx.orthogonalise),
      iterations_(static_cast<int>(whole_option(method, ctx, "iterations", 1, 20))),
      orthogonaliser_(iterations_),
      every_(whole_option(method, ctx, "every", 1, 1'000'000)),
      of_tensor_(ctx.layout.tensors().size()),
      faults_(space_.fault_words(of_tensor_.size())),
      blended_(of_tensor_.size(), 0) {
  PRIDE_CHECK(space_.is_host() || on_device_, method,
              ": on a device set the optimizer's option orthogonalise, which multiplies matrices "
              "there");
  check_on_host(method, space_, every_ == 1, concat("every = ", every_), "set it to 1, or ");
  const auto rule = word_option(method, ctx, "matrix_scale", {"none", "fan-in", "rms"});
  const auto matrices = matrices_of(ctx.layout, ctx.options.at("not_matrices"));
  if (every_ > 1) factors_ = &state.add("factor", kind);
  if (matrices.empty()) return;
  const std::size_t least = std::ranges::min(matrices, {}, &Matrix::cols).cols;
  for (const Matrix& matrix : matrices) {
    const auto longer = static_cast<float>(std::max(matrix.rows, matrix.cols));
    const float scales[] = {1, static_cast<float>(least) / static_cast<float>(matrix.cols),
                            0.2f * std::sqrt(longer)};
    auto held = std::make_unique<Held>();
    held->matrix = matrix;
    held->offset = ctx.layout.tensors()[matrix.tensor].offset;
    held->fused =
        holds_one_of(ctx.layout.tensors()[matrix.tensor].spec.name, ctx.options.at("fused"));
    held->scale = scales[rule];
    held->fault = faults_.get() + matrix.tensor;
    of_tensor_[matrix.tensor] = std::move(held);
  }
}

double OrthogonalBlend::operations() const {
  double sum = 0;
  for (const auto& held : of_tensor_) {
    if (!held) continue;
    // shapes only: no value is touched
    for (const auto& part : parts_of(held->matrix, held->fused, {})) {
      const auto r = static_cast<double>(part.shorter()), c = static_cast<double>(part.longer());
      const double step =
          rules::newton_schulz_operations(part.shorter(), part.longer(), iterations_);
      sum += every_ == 1 ? step
                         : 2 * r * r * c + rules::factor_operations(part.shorter(), part.longer(),
                                                                    iterations_) /
                                               static_cast<double>(every_);
    }
  }
  return sum;
}

float OrthogonalBlend::step_scale(std::size_t tensor) const noexcept {
  return has(tensor) ? of_tensor_[tensor]->scale : 1.0f;
}

// Clears faults: of all matrices if this is the step's first, else of this one.
void OrthogonalBlend::begin(std::int64_t step, std::size_t tensor) {
  if (step != step_) {
    step_ = step;
    std::ranges::fill(blended_, 0);
    space_.forget({faults_.get(), blended_.size()});
  } else if (blended_[tensor] != 0) {  // by another worker, or by this step before it was skipped
    space_.forget({of_tensor_[tensor]->fault, 1});
  }
  blended_[tensor] = 1;
}

void OrthogonalBlend::blend(std::size_t tensor, std::int64_t step, const kernels::Blend& betas,
                            const Values& g, Floats m, Guard guard) {
  begin(step, tensor);
  Held& held = *of_tensor_[tensor];
  if (held.u.size() == 0) held.u = FlatBuffer::room(m.size(), space_);
  space_.lion_blend(g, betas, m, held.u.span(), {held.fault, static_cast<std::uint32_t>(tensor)},
                    guard);
  if (!space_.is_host()) {
    held.waits = any_wait_ = true;
  } else if (space_.fault_in(held.fault) == Wire::kNoTensor &&
             (guard == nullptr || space_.fault_in(guard) == Wire::kNoTensor)) {
    orthogonalise(held, step);
  }
}

void OrthogonalBlend::orthogonalise(Held& held, std::int64_t step) {
  std::size_t offset = held.offset;
  for (const rules::MatrixSpan& part : parts_of(held.matrix, held.fused, held.u.span())) {
    if (factors_ == nullptr) {
      orthogonaliser_.run(part);
      continue;
    }
    const auto factor = factors_->span().subspan(offset, part.shorter() * part.shorter());
    // a factor is positive definite: if its first entry is 0, it was never computed
    orthogonaliser_.run(part, factor, step % every_ == 0 || factor.front() == 0);
    offset += factor.size();
  }
}

// On a device: orthogonalises the waiting matrices, in one call for each shape.
void OrthogonalBlend::orthogonalise_all() {
  std::map<std::array<std::size_t, 3>, std::vector<float*>> by_shape;
  for (const auto& held : of_tensor_) {
    if (!held || !held->waits) continue;
    held->waits = false;
    for (const rules::MatrixSpan& part : parts_of(held->matrix, held->fused, held->u.span())) {
      by_shape[{part.rows, part.cols, part.stride}].push_back(part.data);
    }
  }
  any_wait_ = false;
  for (auto& [shape, data] : by_shape) {
    space_.call([this, shape = shape, data = std::move(data)](void* stream) {
      on_device_({data, shape[0], shape[1], shape[2], iterations_}, stream);
    });
  }
}

const OrthogonalBlend::Held& OrthogonalBlend::finished(std::size_t tensor) {
  if (any_wait_) orthogonalise_all();
  return *of_tensor_[tensor];
}

void OrthogonalBlend::encode(const Piece& piece, const kernels::SharedBits& zeros,
                             std::span<std::uint64_t> signs, FaultSlot fault) {
  const Held& held = finished(piece.tensor);
  space_.pack_signs(held.u.span().subspan(piece.begin - held.offset, piece.n()), zeros, signs,
                    held.fault, fault);
}

void OrthogonalBlend::release() {
  for (const auto& held : of_tensor_) {
    if (held) held->u = {};
  }
}

}  // namespace pride::methods
