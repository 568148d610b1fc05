// 1-bit Adam.
// SPDX-License-Identifier: Apache-2.0
// Source    Tang et al. 2021, arXiv:2102.02888, Algorithm 1.
// Cost      freeze_steps steps of 32 bits each way; then 1 bit up, 1 bit down and a float per 4096
//           coordinates each way; plus frames.
// State     m, v: moments (n each) float32, equal on all ranks; e: error (n), local to each rank,
//           never sent; e_s: the owner's error, n/N of it in use.
// Deviates  a scale per block of 4096 coordinates instead of one per tensor and rank; both moments
//           keep AdamW's bias correction, v's as it was when v froze; coordinates whose v is 0 stay
//           put; zeros, absent tensors: see docs/wire_format.md.
#include <charconv>
#include <cmath>

#include "methods/dense_method.h"
#include "methods/error_feedback.h"
#include "pride/error.h"
#include "pride/methods/error_feedback.h"

namespace pride::methods {
namespace {

// base^n with every operation rounded as IEEE says, so that no library decides a bit.
double power(double base, std::int64_t n) {
  double result = 1;
  for (; n > 0; n /= 2, base *= base) {
    if (n % 2 == 1) result *= base;
  }
  return result;
}

std::int64_t steps_from(const std::string& text) {
  std::int64_t steps = 0;
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, steps);
  PRIDE_CHECK(error == std::errc() && end == last && steps >= 1, "onebit-adam: freeze_steps = '",
              text, "': give a whole number of at least 1");
  return steps;
}

// The stage before v is frozen: AdamW on the mean gradient.
class DenseAdam final : public DenseMethod {
 public:
  DenseAdam(const Layout& layout, FlatBuffer& m, FlatBuffer& v)
      : DenseMethod("onebit-adam", {layout, 0, 1, {{"dense", "ordered"}}}), m_(m), v_(v) {}

  void save(StateWriter&) const override {}
  void load(StateReader&) override {}
  std::uint64_t state_floats() const override { return 0; }

 private:
  void step_piece(const Piece& p, std::span<const float> g, const StepScalars& s,
                  std::span<float> x) override {
    const kernels::AdamScalars a{s.beta1,     s.one_minus_beta1, s.beta2, s.one_minus_beta2,
                                 s.adam_step, s.adam_sqrt_bias2, s.eps,   s.decay};
    kernels::adamw(g, a, m_.span().subspan(p.begin, p.n()), v_.span().subspan(p.begin, p.n()), x);
  }

  FlatBuffer &m_, &v_;
};

class OneBitAdam final : public ErrorFeedbackMethod {
 public:
  explicit OneBitAdam(const MethodContext& ctx)
      : ErrorFeedbackMethod(ctx.layout, exchange::Norm::kRms),
        freeze_steps_(steps_from(ctx.options.at("freeze_steps"))),
        v_(ctx.layout.flat_size()),
        dense_(ctx.layout, momentum(), v_) {}

  void encode(const Bucket& b, ConstView g, const StepContext& ctx, Wire& w) override {
    if (!is_frozen(ctx.step)) return dense_.encode(b, g, ctx, w);
    w.dense_in = {};  // the floats of the first stage
    w.dense_mean = {};
    ErrorFeedbackMethod::encode(b, g, ctx, w);
  }

  void exchange(Communicator& c, const Bucket& b, const StepContext& ctx, Wire& w) override {
    is_frozen(ctx.step) ? ErrorFeedbackMethod::exchange(c, b, ctx, w)
                        : dense_.exchange(c, b, ctx, w);
  }

  void apply(const Bucket& b, const Wire& w, const StepContext& ctx, View x) override {
    is_frozen(ctx.step) ? ErrorFeedbackMethod::apply(b, w, ctx, x) : dense_.apply(b, w, ctx, x);
  }

  Cost cost(std::span<const Bucket> buckets, int rank, std::int64_t step) const override {
    return is_frozen(step) ? ErrorFeedbackMethod::cost(buckets, rank, step)
                           : dense_.cost(buckets, rank, step);
  }

  void save(StateWriter& out) const override {
    ErrorFeedbackMethod::save(out);
    out.buffer("v", v_);
  }
  void load(StateReader& in) override {
    ErrorFeedbackMethod::load(in);
    in.squares("v", v_);
  }
  std::uint64_t state_floats() const override {
    return ErrorFeedbackMethod::state_floats() + v_.size();
  }

 private:
  bool is_frozen(std::int64_t step) const noexcept { return step >= freeze_steps_; }

  // p = b1 m + (1-b1) g + e;  C(p) = (||p||_2 / sqrt(n)) sign(p);  e = p - C(p)
  kernels::Feedback feedback(const StepScalars& s) const override {
    return {.keep = s.beta1, .take = s.one_minus_beta1, .rate = 1};
  }

  // m = Delta;  x = (1 - lr wd) x - lr mhat / (sqrt(vhat) + eps), vhat as of the last dense step
  void step_block(const ScaleBlock& b, const exchange::SignBlock& delta, const StepContext&,
                  const StepScalars& s, std::span<float> m, std::span<float> x) override {
    const double beta2 = 1 - static_cast<double>(s.one_minus_beta2);
    const kernels::AdamScalars a{
        .step_size = s.adam_step,
        .sqrt_bias2 = static_cast<float>(std::sqrt(1 - power(beta2, freeze_steps_))),
        .eps = s.eps,
        .decay = s.decay};
    kernels::adam_signs(delta.signs, delta.scale, a, v_.span().subspan(b.begin, b.n()), m, x);
  }

  std::int64_t freeze_steps_;
  FlatBuffer v_;
  DenseAdam dense_;
};

}  // namespace

std::unique_ptr<Method> make_onebit_adam(const MethodContext& ctx) {
  return std::make_unique<OneBitAdam>(ctx);
}

MethodInfo onebit_adam_info(int) {
  MethodInfo info;
  info.title = "1-bit Adam: AdamW, then scaled signs of the momentum";
  info.source = "Tang et al. 2021, arXiv:2102.02888, Algorithm 1";
  info.bits_up = info.bits_down = 1 + 32.0 / kScaleBlock;  // after the dense steps
  info.growth = "none";
  info.state_floats = 4;
  info.default_lr = 1e-3;
  info.default_beta1 = 0.9;
  info.default_beta2 = 0.999;
  info.default_eps = 1e-8;
  info.options = {
      {"freeze_steps", "1000",
       "steps of AdamW, at 32 bits, before v is frozen: 15 to 25 % of all in the paper"}};
  return info;
}

}  // namespace pride::methods
