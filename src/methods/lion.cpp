// Lion on the mean gradient.
// SPDX-License-Identifier: Apache-2.0
// Source    Chen et al. 2023, arXiv:2302.06675, Program 1 (on the mean gradient: G-Lion).
// Cost      32 bits up and 32 bits down per coordinate, plus frames.
// State     m: momentum (n) float32, equal on all ranks.
// Deviates  nothing; a tensor without a gradient on any rank only decays.
#include "kernels/kernels.h"
#include "methods/dense_method.h"
#include "pride/methods/dense.h"

namespace pride::methods {
namespace {

class GlobalLion final : public DenseMethod {
 public:
  explicit GlobalLion(const MethodContext& ctx)
      : DenseMethod("lion", ctx), m_(ctx.layout.flat_size()) {}

  void save(StateWriter& out) const override { out.buffer("m", m_); }
  void load(StateReader& in) override { in.buffer("m", m_); }
  std::uint64_t state_floats() const override { return m_.size(); }

 private:
  // x = (1 - lr wd) x - lr sign(b1 m + (1-b1) g);  m = b2 m + (1-b2) g
  void step_piece(const Piece& p, std::span<const float> g, const StepScalars& s,
                  std::span<float> x) override {
    const kernels::Blend blend{s.beta1, s.one_minus_beta1, s.beta2, s.one_minus_beta2};
    kernels::dense_lion(g, blend, {s.decay, s.lr}, m_.span().subspan(p.begin, p.n()), x);
  }

  FlatBuffer m_;
};

}  // namespace

std::unique_ptr<Method> make_lion(const MethodContext& ctx) {
  return std::make_unique<GlobalLion>(ctx);
}

MethodInfo lion_info(int) {
  MethodInfo info;
  info.title = "Lion on the mean gradient";
  info.source = "Chen et al. 2023, arXiv:2302.06675, Program 1 (on the mean gradient: G-Lion)";
  info.bits_up = 32;
  info.bits_down = 32;
  info.growth = "none";
  info.state_floats = 1;
  info.default_lr = 1e-4;
  info.default_beta1 = 0.9;
  info.default_beta2 = 0.99;
  info.options = {dense_option()};
  return info;
}

}  // namespace pride::methods
