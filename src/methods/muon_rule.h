// MuonRule: a step of Muon for the matrices of a layout, and of AdamW for all else.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "methods/orthogonal_blend.h"
#include "pride/error.h"
#include "rules/rule.h"

namespace pride::methods {

// Jordan et al. 2024, https://kellerjordan.github.io/posts/muon. Keeps the gradient of a matrix
// until it is whole; AdamW's step for all else. Options: those of OrthogonalBlend.
class MuonRule final : public rules::Rule {
 public:
  MuonRule(StateTable& state, StateKind kind, const MethodContext& ctx)
      : adamw_(state, kind, ctx.space),
        space_(ctx.space),
        matrices_(ctx, state, kind),
        layout_(ctx.layout) {
    const std::size_t n = layout_.tensors().size();
    gradients_.resize(n);
    arrived_.resize(n, 0);
    for (const TensorSlot& slot : layout_.tensors()) offsets_.push_back(slot.offset);
  }

  void step(std::size_t begin, const Values& g, const StepScalars& s, Floats x,
            Guard guard = nullptr) override {
    const auto next = std::ranges::upper_bound(offsets_, begin);
    const auto tensor = static_cast<std::size_t>(next - offsets_.begin()) - 1;
    if (!matrices_.has(tensor)) return adamw_.step(begin, g, s, x, guard);
    const TensorSlot& slot = layout_.tensors()[tensor];
    FlatBuffer& whole = gradients_[tensor];
    if (whole.size() == 0) whole = FlatBuffer::room(slot.n, space_);
    space_.run(kernels::Widen{g, whole.span().subspan(begin - slot.offset, g.n)});
    arrived_[tensor] += g.n;
  }

  static constexpr double kMomentum = 0.95;  // MethodInfo::default_momentum
  static std::vector<MethodOption> options() { return OrthogonalBlend::options("rms"); }

  double operations() const override { return matrices_.operations(); }
  std::vector<MatrixForm> matrices() const override { return matrices_.forms(); }

  // x = (1 - lr wd) x - lr scale newton_schulz(u), once the whole gradient is there.
  bool end_piece(std::size_t tensor, std::int64_t step, const StepScalars& s, View x,
                 Guard guard = nullptr) override {
    const TensorSlot& slot = layout_.tensors()[tensor];
    if (arrived_[tensor] < slot.n || !matrices_.has(tensor)) return false;
    arrived_[tensor] = 0;
    const auto g = gradients_[tensor].span();
    // Nesterov's: m' = mu m + (1 - mu) g;  u = mu m' + (1 - mu) g
    const kernels::Blend betas{s.momentum2, s.one_minus_momentum2, s.momentum,
                               s.one_minus_momentum};
    matrices_.blend(tensor, step, betas, Values::of(g),
                    adamw_.m().span().subspan(slot.offset, slot.n), guard);
    // the kernel's m becomes 0 * m + u: a copy of u
    space_.run(kernels::SgdMomentum{Values::of(matrices_.direction(tensor)),
                                    0,
                                    false,
                                    {s.decay, s.lr * matrices_.step_scale(tensor)},
                                    g,
                                    x.f32(tensor, slot.offset, slot.offset + slot.n),
                                    guard});
    return true;
  }

 private:
  rules::AdamW adamw_;
  Space& space_;
  OrthogonalBlend matrices_;
  const Layout& layout_;
  std::vector<std::size_t> offsets_;
  std::vector<FlatBuffer> gradients_;  // by tensor
  std::vector<std::size_t> arrived_;   // coordinates of this step
};

}  // namespace pride::methods
