// SGD with momentum on the mean gradient.
// SPDX-License-Identifier: Apache-2.0
// Source    Polyak 1964; in the form of Sutskever et al. 2013 that PyTorch's torch.optim.SGD has.
// Cost      32 bits up and 32 bits down per coordinate, plus frames.
// State     m: momentum (n) float32, equal on all ranks.
// Deviates  weight decay is decoupled, as in every method here; a tensor without a gradient on any
//           rank only decays.
#include "kernels/kernels.h"
#include "methods/dense_method.h"
#include "methods/options.h"
#include "pride/methods/dense.h"

namespace pride::methods {
namespace {

class GlobalSgdMomentum final : public DenseMethod {
 public:
  explicit GlobalSgdMomentum(const MethodContext& ctx)
      : DenseMethod("sgdm", ctx),
        nesterov_(yes_no_option("sgdm", ctx, "nesterov")),
        m_(ctx.layout.flat_size()) {}

  void save(StateWriter& out) const override { out.buffer("m", m_); }
  void load(StateReader& in) override { in.buffer("m", m_); }
  std::uint64_t state_floats() const override { return m_.size(); }

 private:
  // m = mu m + g;  x = (1 - lr wd) x - lr m, or lr (g + mu m) with Nesterov's momentum
  void step_piece(const Piece& p, std::span<const float> g, const StepScalars& s,
                  std::span<float> x) override {
    kernels::sgd_momentum(g, s.beta1, nesterov_, {s.decay, s.lr}, m_.span().subspan(p.begin, p.n()),
                          x);
  }

  bool nesterov_;
  FlatBuffer m_;
};

}  // namespace

std::unique_ptr<Method> make_sgdm(const MethodContext& ctx) {
  return std::make_unique<GlobalSgdMomentum>(ctx);
}

MethodInfo sgdm_info(int) {
  MethodInfo info;
  info.title = "SGD with momentum on the mean gradient";
  info.source = "Polyak 1964; Sutskever et al. 2013, equations 1 to 4";
  info.bits_up = 32;
  info.bits_down = 32;
  info.growth = "none";
  info.state_floats = 1;
  info.default_lr = 0.1;
  info.default_beta1 = 0.9;
  info.options = {dense_option(), {"nesterov", "no", "'yes' takes Nesterov's momentum"}};
  return info;
}

}  // namespace pride::methods
