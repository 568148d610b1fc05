// Muon on the mean gradient: the uncompressed counterpart of dlion-muon.
// SPDX-License-Identifier: Apache-2.0
// Source    Jordan et al. 2024, https://kellerjordan.github.io/posts/muon; the scale by which a
//           matrix moves as far as AdamW would move it: Liu et al. 2025, arXiv:2502.16982, eq. 4.
// Cost      as adamw: 32 bits up and 32 bits down per coordinate (fewer with the option dense).
// State     m: momentum, v: second moment of tensors that are no matrices (n each) float32, equal
//           on all ranks; with every > 1 also factor: Newton-Schulz factors of the matrices (n).
// Deviates  every rank orthogonalises every matrix: ranks must have the same CPU and BLAS, or their
//           replicas differ in last bits, which the next start-up check finds.
#include "methods/dense.h"
#include "methods/muon_rule.h"
#include "methods/registry.h"

namespace pride::methods {
namespace {

class Muon final : public DenseMethod<MuonRule> {
 public:
  Muon(const MethodContext& ctx) : DenseMethod(ctx, ctx) {
    facts_.matrix_operations = rule_.operations();
    facts_.matrices = rule_.matrices();
  }

  void apply(const Bucket& b, const Flight& flight, const StepContext& ctx, View x) override {
    DenseMethod::apply(b, flight, ctx, x);
    for (const Shard& shard : b.shards) {
      for (const Piece& p : shard.pieces) {
        rule_.end_piece(p.tensor, ctx.step, ctx.scalars_of(p), x);
      }
    }
  }
};

std::string muon_host_only(const OptionValues& options) {
  const std::string dense = dense_host_only(options);
  return dense.empty() ? OrthogonalBlend::host_only(options) : dense;
}

}  // namespace

extern const MethodEntry kMuon = {
    "muon", make<Muon>,
    [](int) {
      MethodInfo info = dense_info("Muon on the mean gradient",
                                   "Jordan et al. 2024, https://kellerjordan.github.io/posts/muon; "
                                   "scale: Liu et al. 2025, arXiv:2502.16982, eq. 4");
      info.default_lr = 1e-3;
      info.default_beta1 = 0.9;
      info.default_beta2 = 0.999;
      info.default_eps = 1e-8;
      info.default_momentum = MuonRule::kMomentum;
      std::ranges::move(MuonRule::options(), std::back_inserter(info.options));
      return info;
    },
    set_dense_bits, muon_host_only};

}  // namespace pride::methods
