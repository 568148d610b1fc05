// Deep gradient compression.
// SPDX-License-Identifier: Apache-2.0
// Source    Lin et al. 2017, arXiv:1712.01887, Algorithms 1 and 4, Sections 3.2 and 3.3.
// Cost      at most ratio (34 + log2(1/ratio)) bits per coordinate to each other rank, plus frames:
//           grows with N.
// State     u: momentum, v: residual (n each) float32, local to each rank; what was sent leaves
//           both.
// Deviates  exactly the largest entries rather than those above a sampled threshold; all tensors
//           are treated alike; weight decay is decoupled; the sparsity warm-up is a smooth decay.
#include <cmath>

#include "kernels/kernels.h"
#include "kernels/sparse.h"
#include "methods/options.h"
#include "methods/sparse_method.h"
#include "pride/methods/sparse.h"

namespace pride::methods {
namespace {

constexpr std::int64_t kMostSteps = std::int64_t{1} << 40;
constexpr double kFirstRatio = 0.25;  // of the warm-up: a sparsity of 75 %

class DeepGradientCompression final : public SparseMethod {
 public:
  explicit DeepGradientCompression(const MethodContext& ctx)
      : SparseMethod("dgc", ctx, false),
        warmup_steps_(whole_option("dgc", ctx, "warmup_steps", 0, kMostSteps)),
        clip_(number_option("dgc", ctx, "clip", 0, 1e30)),
        masking_(yes_no_option("dgc", ctx, "masking")),
        nesterov_(yes_no_option("dgc", ctx, "nesterov")),
        u_(ctx.layout.flat_size()) {}

  void save(StateWriter& out) const override {
    SparseMethod::save(out);
    out.buffer("u", u_);
  }
  void load(StateReader& in) override {
    SparseMethod::load(in);
    in.buffer("u", u_);
  }
  std::uint64_t state_floats() const override { return SparseMethod::state_floats() + u_.size(); }

 private:
  // momentum correction: u = mu u + g;  v = v + u
  void accumulate(const StepContext& ctx, ConstView g) override {
    const float scale = clip_factor(ctx, g);
    for (std::size_t t = 0; t < layout().tensors().size(); ++t) {
      if (ctx.is_absent(t)) continue;
      const TensorSlot& slot = layout().tensors()[t];
      const float mu = ctx.groups[static_cast<std::size_t>(slot.spec.group)].beta1;
      kernels::correct_momentum(g.f32(slot.offset, slot.offset + slot.n), scale, mu, nesterov_,
                                u_.span().subspan(slot.offset, slot.n), residual(slot));
    }
  }

  // local clipping: |g| of this rank is brought down to clip / sqrt(N)
  float clip_factor(const StepContext& ctx, ConstView g) const {
    if (clip_ == 0) return 1;
    double squares = 0;
    for (std::size_t t = 0; t < layout().tensors().size(); ++t) {
      if (ctx.is_absent(t)) continue;
      const TensorSlot& slot = layout().tensors()[t];
      squares += kernels::sum_squares(g.f32(slot.offset, slot.offset + slot.n));
    }
    const double limit = clip_ / std::sqrt(world()), norm = std::sqrt(squares);
    return norm > limit ? static_cast<float>(limit / norm) : 1.0f;
  }

  // 0.25 at first, then a geometric decay to the ratio
  double ratio_at(std::int64_t step) const override {
    if (step >= warmup_steps_ || ratio() >= kFirstRatio) return ratio();
    const double done = static_cast<double>(step) / static_cast<double>(warmup_steps_);
    return kFirstRatio * std::pow(ratio() / kFirstRatio, done);
  }

  // momentum factor masking: what was sent leaves the momentum too
  void commit(std::span<const std::uint64_t> mask, std::size_t begin, std::size_t end) override {
    SparseMethod::commit(mask, begin, end);
    if (masking_) kernels::clear_selected(mask, u_.span().subspan(begin, end - begin));
  }

  std::int64_t warmup_steps_;
  double clip_;
  bool masking_, nesterov_;
  FlatBuffer u_;
};

}  // namespace

std::unique_ptr<Method> make_dgc(const MethodContext& ctx) {
  return std::make_unique<DeepGradientCompression>(ctx);
}

MethodInfo dgc_info(int world) {
  MethodInfo info = sparse_method_info(world);
  info.title = "Deep gradient compression";
  info.source = "Lin et al. 2017, arXiv:1712.01887, Algorithms 1 and 4";
  info.state_floats = 2;
  info.default_beta1 = 0.9;
  info.options.insert(
      info.options.end(),
      {{"warmup_steps", "0", "steps in which the share falls from 0.25 to ratio"},
       {"clip", "0", "local clipping: 2-norm of the gradient, divided by sqrt(N); 0: none"},
       {"masking", "yes", "momentum factor masking: what was sent leaves the momentum too"},
       {"nesterov", "no", "'yes' takes Nesterov's momentum"}});
  return info;
}

}  // namespace pride::methods
