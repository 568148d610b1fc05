// SignSGD with error feedback.
// SPDX-License-Identifier: Apache-2.0
// Source    Karimireddy et al. 2019, arXiv:1901.09847, Algorithm 1; several workers as in Zheng et
//           al. 2019, arXiv:1905.10936 (dist-EF-blockSGD).
// Cost      1 bit up, 1 bit down and a float per 4096 coordinates each way, plus frames.
// State     m: momentum, e: error (n each) float32, local to each rank, never sent; e_s: the
//           owner's error, n/N of it in use.
// Deviates  a scale per block of 4096 coordinates instead of one per tensor; momentum is plain, not
//           Nesterov's; zeros, absent tensors: see docs/wire_format.md.
#include <charconv>

#include "methods/error_feedback.h"
#include "pride/error.h"
#include "pride/methods/error_feedback.h"

namespace pride::methods {
namespace {

class SignSgdErrorFeedback final : public ErrorFeedbackMethod {
 public:
  explicit SignSgdErrorFeedback(const MethodContext& ctx)
      : ErrorFeedbackMethod(ctx.layout, exchange::Norm::kMeanAbs),
        momentum_(momentum_from(ctx.options.at("momentum"))) {}

 private:
  static float momentum_from(const std::string& text) {
    double value = -1;
    const char* last = text.data() + text.size();
    const auto [end, error] = std::from_chars(text.data(), last, value);
    PRIDE_CHECK(error == std::errc() && end == last && value >= 0 && static_cast<float>(value) < 1,
                "signsgd-ef: option momentum = '", text, "': give a number in [0, 1)");
    return static_cast<float>(value);
  }

  // m = momentum m + g;  p = lr m + e;  C(p) = (||p||_1 / n) sign(p);  e = p - C(p)
  kernels::Feedback feedback(const StepScalars& s) const override {
    return {.keep = momentum_, .take = 1, .rate = s.lr};
  }

  // x = (1 - lr wd) x - Delta
  void step_block(const ScaleBlock&, const exchange::SignBlock& delta, const StepContext&,
                  const StepScalars& s, std::span<float>, std::span<float> x) override {
    kernels::apply_signs(delta.signs, {s.decay, delta.scale}, x);
  }

  float momentum_;
};

}  // namespace

std::unique_ptr<Method> make_signsgd_ef(const MethodContext& ctx) {
  return std::make_unique<SignSgdErrorFeedback>(ctx);
}

MethodInfo signsgd_ef_info(int) {
  MethodInfo info;
  info.title = "SignSGD with error feedback";
  info.source =
      "Karimireddy et al. 2019, arXiv:1901.09847, Algorithm 1; Zheng et al. 2019, arXiv:1905.10936";
  info.bits_up = 1 + 32.0 / kScaleBlock;
  info.bits_down = 1 + 32.0 / kScaleBlock;
  info.growth = "none";
  info.state_floats = 3;
  info.default_lr = 0.1;
  info.options = {{"momentum", "0",
                   "of the gradients, before feedback; it wants a rate lower than (1 - momentum) "
                   "times that without"}};
  return info;
}

}  // namespace pride::methods
