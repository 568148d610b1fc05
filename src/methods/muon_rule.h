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
// until it is whole; AdamW's step for all else. Options: those of OrthogonalBlend, and `momentum`.
class MuonRule final : public rules::Rule {
 public:
  MuonRule(StateTable& state, StateKind kind, const MethodContext& ctx,
           const char* momentum = "momentum")
      : adamw_(state, kind, ctx.space),
        space_(ctx.space),
        matrices_(ctx, state, kind),
        layout_(ctx.layout) {
    const double mu = ctx.options.number(momentum, 0, 1);
    PRIDE_CHECK(static_cast<float>(mu) < 1, ctx.options.method(), ": option ", momentum, " = '",
                ctx.options.text(momentum), "': must be below 1, or no gradient enters it");
    betas_ = {static_cast<float>(mu * mu), static_cast<float>(1 - mu * mu), static_cast<float>(mu),
              static_cast<float>(1 - mu)};
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

  static std::vector<MethodOption> options() {
    std::vector<MethodOption> all = {
        {"momentum", "0.95", "Nesterov's momentum of a matrix, from 0 to below 1"}};
    std::ranges::move(OrthogonalBlend::options("rms"), std::back_inserter(all));
    return all;
  }

  double operations() const override { return matrices_.operations(); }
  std::vector<MatrixForm> matrices() const override { return matrices_.forms(); }

  // x = (1 - lr wd) x - lr scale newton_schulz(u), once the whole gradient is there.
  bool end_piece(std::size_t tensor, std::int64_t step, const StepScalars& s, View x,
                 Guard guard = nullptr) override {
    const TensorSlot& slot = layout_.tensors()[tensor];
    if (arrived_[tensor] < slot.n || !matrices_.has(tensor)) return false;
    arrived_[tensor] = 0;
    const auto g = gradients_[tensor].span();
    matrices_.blend(tensor, step, betas_, Values::of(g),
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
  kernels::Blend betas_;
  const Layout& layout_;
  std::vector<std::size_t> offsets_;
  std::vector<FlatBuffer> gradients_;  // by tensor
  std::vector<std::size_t> arrived_;   // coordinates of this step
};

}  // namespace pride::methods
