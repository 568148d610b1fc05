// 1-bit Adam.
// SPDX-License-Identifier: Apache-2.0
// Source    Tang et al. 2021, arXiv:2102.02888, Algorithm 1.
// Cost      freeze_steps steps of 32 bits each way; then 1 bit up, 1 bit down and a float per 4096
//           coordinates each way; plus frames.
// State     m, v: moments (n each) float32, equal on all ranks; error (n), local to each rank and
//           never sent; server_error: n/N of it in use.
// Deviates  a scale per block of 4096 coordinates instead of one per tensor and rank; both moments
//           keep AdamW's bias correction, that of v as of its freeze; coordinates with v = 0 do
//           not move; zeros, unused tensors: see docs/wire_format.md.
#include <cmath>

#include "base/power.h"
#include "methods/dense_mean.h"
#include "methods/error_feedback.h"
#include "methods/registry.h"

namespace pride::methods {
namespace {

class OneBitAdam final : public Method {
 public:
  OneBitAdam(const MethodContext& ctx)
      : freeze_steps_(ctx.options.whole("freeze_steps", 1, kMostSteps)),
        adamw_(state_, StateKind::kShared, Space::host()),
        mean_(Dense::kOrdered, Space::host()),
        // p = b1 m + (1-b1) g + e;  C(p) = (||p||_2 / sqrt(n)) sign(p);  e = p - C(p)
        feedback_(Space::host(), state_, adamw_.m(), kernels::Norm::kRms, [](const StepScalars& s) {
          return kernels::Feedback{.keep = s.beta1, .take = s.one_minus_beta1, .rate = 1};
        }) {
    facts_.cannot_grow =
        ctx.options.method() +
        ": tensors cannot be added later: second moments are computed only in the first "
        "freeze_steps steps; create a new optimizer";
  }

  Protocol protocol(const SharedContext&) const override {
    return {.alignment = kScaleBlock, .keeps_gradient = true};
  }
  std::vector<Part> parts(const Bucket& b, const SharedContext& shared) const override {
    return is_frozen(shared) ? feedback_.parts(b) : mean_.parts(b);
  }
  void encode(const Bucket& b, const StepContext& ctx, Flight& flight) override {
    if (!is_frozen(ctx)) return mean_.encode(b, ctx, flight);
    flight.wire(0).room = {};  // frees the floats of the dense steps
    feedback_.encode(b, ctx, flight);
  }
  void serve(const Part& part, const Shard& shard, const VoterFrames& voters,
             const SharedContext& shared, Reply& reply) const override {
    is_frozen(shared) ? feedback_.serve(shard, voters, shared, reply)
                      : mean_.serve(part, shard, voters, shared, reply);
  }

  // Before v is frozen: AdamW on the mean gradient. Then m = Delta and
  // x = (1 - lr wd) x - lr mhat / (sqrt(vhat) + eps), vhat as of the last dense step.
  void apply(const Bucket& b, const Flight& flight, const StepContext& ctx, View x) override {
    if (!is_frozen(ctx)) return mean_.apply(b, flight, ctx, adamw_, x);
    feedback_.apply(b, flight, ctx, x,
                    [this](const ScaleBlock& block, const ErrorFeedback::Delta& delta,
                           const StepScalars& s, std::span<float> m, Floats x_part) {
                      const double beta2 = 1 - static_cast<double>(s.one_minus_beta2);
                      const kernels::AdamScalars a{.step_size = s.adam_step,
                                                   .sqrt_bias2 = static_cast<float>(
                                                       std::sqrt(1 - power(beta2, freeze_steps_))),
                                                   .eps = s.eps,
                                                   .decay = s.decay};
                      const auto v = adamw_.v().span().subspan(block.begin, block.n());
                      x_part.for_blocks([&](std::size_t, std::span<float> part) {
                        kernels::adam_signs(delta.signs, delta.scales.of[0], a, v, m, part);
                      });
                    });
  }

 private:
  bool is_frozen(const SharedContext& shared) const noexcept {
    return shared.step >= freeze_steps_;
  }

  std::int64_t freeze_steps_;
  rules::AdamW adamw_;
  DenseMean mean_;
  ErrorFeedback feedback_;
};

}  // namespace

extern const MethodEntry kOneBitAdam = {
    "onebit-adam", make<OneBitAdam>, [](int) {
      MethodInfo info;
      info.title = "1-bit Adam: AdamW, then scaled signs of the momentum";
      info.source = "Tang et al. 2021, arXiv:2102.02888, Algorithm 1";
      info.bits_up = info.bits_down = 1 + 32.0 / kScaleBlock;  // after the dense steps
      info.growth = "none";
      info.default_lr = 1e-3;
      info.default_beta1 = 0.9;
      info.default_beta2 = 0.999;
      info.default_eps = 1e-8;
      info.options = {
          {"freeze_steps", "1000",
           "steps of AdamW, at 32 bits, before v is frozen: 15 to 25 % of all in the paper"}};
      return info;
    }};

}  // namespace pride::methods
