// Distributed Signum: signs of the momentum, majority vote or average.
// SPDX-License-Identifier: Apache-2.0
// Source    Bernstein et al. 2018, arXiv:1802.04434, Algorithm 2 (Signum), and arXiv:1810.05291,
//           Algorithm 1 (majority vote); with averaging, D-SIGNUM of Liu et al. 2024, Section 5.
// Cost      1 bit up; down 1 bit (vote; 2 with tie = zero) or log2(N+1) (average).
// State     m: momentum (n) float32, local to each rank, never sent.
// Deviates  zeros, ties and absent tensors: see docs/wire_format.md; weight decay is decoupled.
#include "pride/methods/signum.h"

#include "methods/sign_method.h"

namespace pride::methods {
namespace {

// delta_i = sign(m), m = b m + (1-b) g: what is sent is the sign of the new momentum
kernels::Blend signum_blend(const StepScalars& s) {
  return {s.beta1, s.one_minus_beta1, s.beta1, s.one_minus_beta1};
}

class DistributedSignumVote final : public VoteMethod {
 public:
  explicit DistributedSignumVote(const MethodContext& ctx) : VoteMethod("signum-vote", ctx) {}

 private:
  kernels::Blend blend(const StepScalars& s) const override { return signum_blend(s); }
};

class DistributedSignumAvg final : public AverageMethod {
 public:
  explicit DistributedSignumAvg(const MethodContext& ctx) : AverageMethod("signum-avg", ctx) {}

 private:
  kernels::Blend blend(const StepScalars& s) const override { return signum_blend(s); }
};

MethodInfo with_defaults(MethodInfo info) {
  info.source =
      "Bernstein et al. 2018, arXiv:1802.04434, Algorithm 2; as D-SIGNUM in Liu et al. "
      "2024, arXiv:2404.00438, Section 5";
  info.default_lr = 1e-4;
  info.default_beta1 = 0.99;
  return info;
}

}  // namespace

std::unique_ptr<Method> make_signum_vote(const MethodContext& ctx) {
  return std::make_unique<DistributedSignumVote>(ctx);
}

std::unique_ptr<Method> make_signum_avg(const MethodContext& ctx) {
  return std::make_unique<DistributedSignumAvg>(ctx);
}

MethodInfo signum_vote_info(int) {
  MethodInfo info = with_defaults(vote_method_info());
  info.title = "Distributed Signum, majority vote";
  return info;
}

MethodInfo signum_avg_info(int world) {
  MethodInfo info = with_defaults(average_method_info(world));
  info.title = "Distributed Signum, average of signs";
  return info;
}

}  // namespace pride::methods
