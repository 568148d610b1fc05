// Muon on the mean gradient: the uncompressed rival of dlion-muon.
// SPDX-License-Identifier: Apache-2.0
// Source    Jordan et al. 2024, https://kellerjordan.github.io/posts/muon; the scale by which a
//           matrix moves as far as AdamW would move it: Liu et al. 2025, arXiv:2502.16982, eq. 4.
// Cost      as adamw: 32 bits up and 32 bits down per coordinate (16 and 16 with dense = bf16).
// State     m: momentum, v: second moment of what is no matrix (n each) float32, equal on all
//           ranks; with every > 1 factor: Newton-Schulz factors of the matrices (n).
// Deviates  every rank orthogonalises every matrix: ranks must have the same CPU and BLAS, or their
//           replicas differ in last bits, which the next start-up check finds.
#include <vector>

#include "methods/dense.h"
#include "methods/dense_mean.h"
#include "methods/options.h"
#include "methods/orthogonal_blend.h"
#include "methods/registry.h"
#include "pride/error.h"

namespace pride::methods {
namespace {

// Keeps the mean gradient of matrices until it is whole; AdamW's step for all else.
class MuonRule final : public rules::Rule {
 public:
  MuonRule(StateTable& state, StateKind kind, const std::string& name, const MethodContext& ctx)
      : adamw_(state, kind), matrices_(name, ctx, state, kind), layout_(ctx.layout) {
    const double mu = number_option(name, ctx, "momentum", 0, 1);
    PRIDE_CHECK(static_cast<float>(mu) < 1, name, ": option momentum = '",
                ctx.options.at("momentum"), "': must be below 1, or no gradient enters it");
    betas_ = {static_cast<float>(mu * mu), static_cast<float>(1 - mu * mu), static_cast<float>(mu),
              static_cast<float>(1 - mu)};
    const std::size_t n = layout_.tensors().size();
    gradients_.resize(n);
    arrived_.resize(n, 0);
    for (const TensorSlot& slot : layout_.tensors()) offsets_.push_back(slot.offset);
  }

  void step(std::size_t begin, std::span<const float> g, const StepScalars& s,
            std::span<float> x) override {
    const auto next = std::ranges::upper_bound(offsets_, begin);
    const auto tensor = static_cast<std::size_t>(next - offsets_.begin()) - 1;
    if (!matrices_.has(tensor)) return adamw_.step(begin, g, s, x);
    const TensorSlot& slot = layout_.tensors()[tensor];
    gradients_[tensor].resize(slot.n);
    std::ranges::copy(
        g, gradients_[tensor].begin() + static_cast<std::ptrdiff_t>(begin - slot.offset));
    arrived_[tensor] += g.size();
  }

  double operations() const { return matrices_.operations(); }

  // After the bucket's part of a tensor: x = (1 - lr wd) x - lr scale newton_schulz(u), once the
  // whole gradient is there.
  void finish(std::size_t tensor, const StepContext& ctx, const StepScalars& s, View x) {
    const TensorSlot& slot = layout_.tensors()[tensor];
    if (arrived_[tensor] < slot.n || !matrices_.has(tensor)) return;
    arrived_[tensor] = 0;
    const auto m = adamw_.m().span().subspan(slot.offset, slot.n);
    matrices_.blend(tensor, ctx.step, betas_, gradients_[tensor], m);
    // m of this kernel is 0 * m + u: its own copy of u
    kernels::sgd_momentum(matrices_.direction(tensor), 0, false,
                          {s.decay, s.lr * matrices_.step_scale(tensor)}, gradients_[tensor],
                          x.f32(slot.offset, slot.offset + slot.n));
  }

 private:
  rules::AdamW adamw_;
  OrthogonalBlend matrices_;
  kernels::Blend betas_;
  const Layout& layout_;
  std::vector<std::size_t> offsets_;
  std::vector<std::vector<float>> gradients_;  // by tensor
  std::vector<std::size_t> arrived_;           // coordinates of this step
};

class Muon final : public DenseMethod<MuonRule> {
 public:
  Muon(const std::string& name, const MethodContext& ctx) : DenseMethod(name, ctx, name, ctx) {}

  double matrix_operations() const override { return rule_.operations(); }

  void apply(const Bucket& b, const Flight& flight, const StepContext& ctx, View x) override {
    DenseMethod::apply(b, flight, ctx, x);
    for (const Shard& shard : b.shards) {
      for (const Piece& p : shard.pieces) rule_.finish(p.tensor, ctx, ctx.scalars_of(p), x);
    }
  }
};

}  // namespace

extern const MethodEntry kMuon = {
    "muon",
    [](const MethodContext& ctx) -> std::unique_ptr<Method> {
      return std::make_unique<Muon>("muon", ctx);
    },
    [](int) {
      MethodInfo info = dense_info("Muon on the mean gradient",
                                   "Jordan et al. 2024, https://kellerjordan.github.io/posts/muon; "
                                   "scale: Liu et al. 2025, arXiv:2502.16982, eq. 4");
      info.default_lr = 1e-3;
      info.default_beta1 = 0.9;
      info.default_beta2 = 0.999;
      info.default_eps = 1e-8;
      info.options.push_back(
          {"momentum", "0.95", "Nesterov's momentum of a matrix, from 0 to below 1"});
      std::ranges::move(OrthogonalBlend::options("rms"), std::back_inserter(info.options));
      return info;
    }};

}  // namespace pride::methods
