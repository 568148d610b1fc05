// Distributed Lion, majority vote.
// SPDX-License-Identifier: Apache-2.0
// Source    Liu et al. 2024, arXiv:2404.00438, Algorithm 1 (MaVo).
// Cost      1 bit up and 1 bit down per coordinate (2 down with tie = zero), plus frames.
// State     m: momentum (n) float32, local to each rank, never sent.
// Deviates  zeros, ties and absent tensors: see docs/wire_format.md.
#include "methods/sign_method.h"
#include "pride/methods/dlion.h"

namespace pride::methods {
namespace {

// delta_i = sign(b1 m + (1-b1) g);  m = b2 m + (1-b2) g
// Delta = sign(sum of delta_i);     x = (1 - lr wd) x - lr Delta
class DistributedLionVote final : public VoteMethod {
 public:
  explicit DistributedLionVote(const MethodContext& ctx) : VoteMethod("dlion-vote", ctx) {}

 private:
  kernels::Blend blend(const StepScalars& s) const override {
    return {s.beta1, s.one_minus_beta1, s.beta2, s.one_minus_beta2};
  }
};

}  // namespace

std::unique_ptr<Method> make_dlion_vote(const MethodContext& ctx) {
  return std::make_unique<DistributedLionVote>(ctx);
}

MethodInfo dlion_vote_info(int) {
  MethodInfo info = vote_method_info();
  info.title = "Distributed Lion, majority vote";
  info.source = "Liu et al. 2024, arXiv:2404.00438, Algorithm 1 (MaVo)";
  info.default_lr = 1e-4;
  info.default_beta1 = 0.9;
  info.default_beta2 = 0.99;
  return info;
}

}  // namespace pride::methods
