// AdamW on the mean gradient.
// SPDX-License-Identifier: Apache-2.0
// Source    Loshchilov & Hutter 2019, arXiv:1711.05101, Algorithm 2 (on the mean gradient:
//           G-AdamW).
// Cost      32 bits up and 32 bits down per coordinate, plus frames.
// State     m, v: first and second moment (n each) float32, equal on all ranks.
// Deviates  nothing; a tensor without a gradient on any rank only decays.
#include "kernels/kernels.h"
#include "methods/dense_method.h"
#include "pride/methods/dense.h"

namespace pride::methods {
namespace {

class GlobalAdamW final : public DenseMethod {
 public:
  explicit GlobalAdamW(const MethodContext& ctx)
      : DenseMethod("adamw", ctx), m_(ctx.layout.flat_size()), v_(ctx.layout.flat_size()) {}

  void save(StateWriter& out) const override {
    out.buffer("m", m_);
    out.buffer("v", v_);
  }
  void load(StateReader& in) override {
    in.buffer("m", m_);
    in.squares("v", v_);
  }
  std::uint64_t state_floats() const override { return m_.size() + v_.size(); }

 private:
  // m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;  x = (1 - lr wd) x - lr mhat / (sqrt(vhat) + eps)
  void step_piece(const Piece& p, std::span<const float> g, const StepScalars& s,
                  std::span<float> x) override {
    const kernels::AdamScalars a{s.beta1,     s.one_minus_beta1, s.beta2, s.one_minus_beta2,
                                 s.adam_step, s.adam_sqrt_bias2, s.eps,   s.decay};
    kernels::adamw(g, a, m_.span().subspan(p.begin, p.n()), v_.span().subspan(p.begin, p.n()), x);
  }

  FlatBuffer m_, v_;
};

}  // namespace

std::unique_ptr<Method> make_adamw(const MethodContext& ctx) {
  return std::make_unique<GlobalAdamW>(ctx);
}

MethodInfo adamw_info(int) {
  MethodInfo info;
  info.title = "AdamW on the mean gradient";
  info.source =
      "Loshchilov & Hutter 2019, arXiv:1711.05101, Algorithm 2 (on the mean gradient: G-AdamW)";
  info.bits_up = 32;
  info.bits_down = 32;
  info.growth = "none";
  info.state_floats = 2;
  info.default_lr = 1e-3;
  info.default_beta1 = 0.9;
  info.default_beta2 = 0.999;
  info.default_eps = 1e-8;
  info.options = {dense_option()};
  return info;
}

}  // namespace pride::methods
