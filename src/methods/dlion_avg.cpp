// Distributed Lion, average of signs.
// SPDX-License-Identifier: Apache-2.0
// Source    Liu et al. 2024, arXiv:2404.00438, Algorithm 1 (Avg).
// Cost      1 bit up and about log2(N+1) bits down per coordinate (count_bits), plus frames.
// State     m: momentum (n) float32, local to each rank, never sent.
// Deviates  zeros and absent tensors: see docs/wire_format.md. Sent down is the count of +, as many
//           as fit in 32 bits, or as bit planes: never less than log2(N+1) bits.
#include "methods/sign_method.h"
#include "pride/methods/dlion.h"

namespace pride::methods {
namespace {

// delta_i = sign(b1 m + (1-b1) g);  m = b2 m + (1-b2) g
// S = sum of delta_i;               x = (1 - lr wd) x - lr S / N
class DistributedLionAvg final : public AverageMethod {
 public:
  explicit DistributedLionAvg(const MethodContext& ctx) : AverageMethod("dlion-avg", ctx) {}

 private:
  kernels::Blend blend(const StepScalars& s) const override {
    return {s.beta1, s.one_minus_beta1, s.beta2, s.one_minus_beta2};
  }
};

}  // namespace

std::unique_ptr<Method> make_dlion_avg(const MethodContext& ctx) {
  return std::make_unique<DistributedLionAvg>(ctx);
}

MethodInfo dlion_avg_info(int world) {
  MethodInfo info = average_method_info(world);
  info.title = "Distributed Lion, average of signs";
  info.source = "Liu et al. 2024, arXiv:2404.00438, Algorithm 1 (Avg)";
  info.default_lr = 1e-4;
  info.default_beta1 = 0.9;
  info.default_beta2 = 0.99;
  return info;
}

}  // namespace pride::methods
