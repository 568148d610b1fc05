// SPDX-License-Identifier: Apache-2.0
#include "methods/orthogonal_blend.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "kernels/levels.h"
#include "kernels/scaled_signs.h"
#include "pride/error.h"

namespace pride::methods {
namespace {

std::int64_t every_option(const OptionValues& options) {
  return options.whole("every", 1, 1'000'000);
}

rules::MatrixSpan span_of(const Matrix& matrix, const MatrixBlock& block, std::span<float> values) {
  return {values.data() + block.begin, block.rows, block.cols, matrix.cols};
}

}  // namespace

std::vector<MethodOption> OrthogonalBlend::options(const std::string& matrix_scale) {
  return {{"iterations", "5", "Newton-Schulz iterations for a matrix, 1 to 20"},
          {"every", "1",
           "steps for which a matrix keeps its Newton-Schulz factor; 1 iterates in every step "
           "(above 1: one product per step, 1 float of state)"},
          {"not_matrices", kNotMatrices,
           "words, separated by commas: a tensor whose name contains one of them is not treated "
           "as a matrix; nor is a tensor with one dimension. =name: the tensor of that name; none: "
           "no word"},
          {"split", kSplit,
           "blocks of a matrix that are orthogonalised separately; items, separated by commas. "
           "WORD: if "
           "the matrix's name contains it and the longer side is three times the shorter, three "
           "equal blocks (query, key and value). WORD=SIZES, such as qkv=4096+1024+1024 or "
           "q_proj=32*128: blocks of these sizes, which add up to its rows or else to its columns. "
           "=name as WORD: the tensor of that name; none: no item"},
          {"matrix_scale", matrix_scale,
           "factor on a matrix's learning rate: 'none'; 'fan-in', the smallest fan-in of all "
           "matrices divided by its own; or 'rms', 0.2 times the square root of its longer side"}};
}

std::string OrthogonalBlend::host_only(const OptionValues& options) {
  const std::int64_t every = every_option(options);
  return every == 1 ? "" : needs_host(options, concat("every = ", every), "set it to 1, or ");
}

OrthogonalBlend::OrthogonalBlend(const MethodContext& ctx, StateTable& state, StateKind kind)
    : space_(ctx.space),
      on_device_(ctx.orthogonalise),
      iterations_(static_cast<int>(ctx.options.whole("iterations", 1, 20))),
      orthogonaliser_(iterations_),
      every_(every_option(ctx.options)),
      of_tensor_(ctx.layout.tensors().size()),
      faults_(space_.fault_words(of_tensor_.size())),
      blended_(of_tensor_.size(), 0) {
  PRIDE_CHECK(space_.is_host() || on_device_, ctx.options.method(),
              ": on a device set the optimizer's option orthogonalise, which multiplies matrices "
              "there");
  const auto rule = ctx.options.word("matrix_scale", {"none", "fan-in", "rms"});
  const auto matrices = matrices_of(ctx.options.method(), ctx.layout, ctx.options.values());
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
    held->scale = scales[rule];
    held->fault = faults_.get() + matrix.tensor;
    of_tensor_[matrix.tensor] = std::move(held);
  }
}

std::vector<MatrixForm> OrthogonalBlend::forms() const {
  std::vector<MatrixForm> forms(of_tensor_.size(), MatrixForm::kNone);
  for (std::size_t i = 0; i < forms.size(); ++i) {
    if (of_tensor_[i]) forms[i] = of_tensor_[i]->matrix.form();
  }
  return forms;
}

double OrthogonalBlend::operations() const {
  double sum = 0;
  for (const auto& held : of_tensor_) {
    if (!held) continue;
    for (const MatrixBlock& block : held->matrix.blocks) {
      const auto [shorter, longer] = std::minmax(block.rows, block.cols);
      const auto r = static_cast<double>(shorter), c = static_cast<double>(longer);
      sum += every_ == 1 ? rules::newton_schulz_operations(shorter, longer, iterations_)
                         : 2 * r * r * c + rules::factor_operations(shorter, longer, iterations_) /
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
  of_tensor_[tensor]->n_released = 0;
}

void OrthogonalBlend::blend(std::size_t tensor, std::int64_t step, const kernels::Blend& betas,
                            const Values& g, Floats m, Guard guard) {
  begin(step, tensor);
  Held& held = *of_tensor_[tensor];
  if (held.u.size() == 0) held.u = FlatBuffer::room(m.size(), space_);
  space_.run(kernels::LionBlend{
      g, betas, m, held.u.span(), {held.fault, static_cast<std::uint32_t>(tensor)}, guard});
  if (!space_.is_host()) {
    held.waits = any_wait_ = true;
  } else if (space_.fault_in(held.fault) == Wire::kNoTensor &&
             (guard == nullptr || space_.fault_in(guard) == Wire::kNoTensor)) {
    orthogonalise(held, step);
  }
}

void OrthogonalBlend::orthogonalise(Held& held, std::int64_t step) {
  std::size_t offset = held.offset;
  for (const MatrixBlock& block : held.matrix.blocks) {
    const rules::MatrixSpan part = span_of(held.matrix, block, held.u.span());
    if (factors_ == nullptr) {
      orthogonaliser_.run(part);
      continue;
    }
    // all fit: the square of a block's shorter side is at most the number of its values
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
    for (const MatrixBlock& block : held->matrix.blocks) {
      const rules::MatrixSpan part = span_of(held->matrix, block, held->u.span());
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
  space_.run(kernels::PackSigns{held.u.span().subspan(piece.begin - held.offset, piece.n()), zeros,
                                signs, held.fault, fault});
}

void OrthogonalBlend::release(const Piece& piece) {
  Held& held = *of_tensor_[piece.tensor];
  held.n_released += piece.n();
  if (held.n_released == held.u.size()) held.u = {};
}

}  // namespace pride::methods
