// SignSGD with error feedback.
// SPDX-License-Identifier: Apache-2.0
// Source    Karimireddy et al. 2019, arXiv:1901.09847, Algorithm 1; several workers as in Zheng et
//           al. 2019, arXiv:1905.10936 (dist-EF-blockSGD).
// Cost      1 bit up, 1 bit down and a float per 4096 coordinates each way, plus frames.
// State     m: momentum, error (n each) float32, local to each rank, never sent; server_error: n/N
//           of it in use.
// Deviates  a scale per block of 4096 coordinates instead of one per tensor; momentum is plain, not
//           Nesterov's; zeros, unused tensors: see docs/wire_format.md.
#include "kernels/kernels.h"
#include "methods/error_feedback.h"
#include "methods/registry.h"
#include "pride/error.h"

namespace pride::methods {
namespace {

class SignSgdErrorFeedback final : public Method {
 public:
  SignSgdErrorFeedback(const MethodContext& ctx)
      : momentum_(static_cast<float>(ctx.options.number("momentum", 0, 1))),
        // m = momentum m + g;  p = lr m + e;  C(p) = (||p||_1 / n) sign(p);  e = p - C(p)
        space_(ctx.space),
        feedback_(space_, state_, state_.add("m", StateKind::kLocal), kernels::Norm::kMeanAbs,
                  [this](const StepScalars& s) {
                    return kernels::Feedback{.keep = momentum_, .take = 1, .rate = s.lr};
                  }) {
    PRIDE_CHECK(momentum_ < 1, ctx.options.method(), ": option momentum = '",
                ctx.options.text("momentum"), "': give a number in [0, 1)");
  }

  Protocol protocol(const SharedContext&) const override {
    return {.alignment = kScaleBlock, .keeps_gradient = true};
  }
  std::vector<Part> parts(const Bucket& b, const SharedContext&) const override {
    return feedback_.parts(b);
  }
  void encode(const Bucket& b, const StepContext& ctx, Flight& flight) override {
    feedback_.encode(b, ctx, flight);
  }
  void serve(const Part&, const Shard& shard, const VoterFrames& voters,
             const SharedContext& shared, Reply& reply) const override {
    feedback_.serve(shard, voters, shared, reply);
  }
  // x = (1 - lr wd) x - Delta
  void apply(const Bucket& b, const Flight& flight, const StepContext& ctx, View x) override {
    feedback_.apply(
        b, flight, ctx, x,
        [this](const ScaleBlock&, const ErrorFeedback::Delta& delta, const StepScalars& s,
               std::span<float>, Floats part) {
          space_.run(kernels::ApplyScaledSigns{delta.signs, delta.scales, s.decay, part});
        });
  }

 private:
  float momentum_;
  Space& space_;
  ErrorFeedback feedback_;
};

}  // namespace

extern const MethodEntry kSignSgdEf = {
    "signsgd-ef", make<SignSgdErrorFeedback>, [](int) {
      MethodInfo info;
      info.title = "SignSGD with error feedback";
      info.source =
          "Karimireddy et al. 2019, arXiv:1901.09847, Algorithm 1; Zheng et al. 2019, "
          "arXiv:1905.10936";
      info.bits_up = info.bits_down = 1 + 32.0 / kScaleBlock;
      info.growth = "none";
      info.default_lr = 0.1;
      info.on_device = true;
      info.options = {
          {"momentum", "0",
           "momentum of the gradients, before error feedback; use a rate below (1 - momentum) "
           "times the rate without it"}};
      return info;
    }};

}  // namespace pride::methods
