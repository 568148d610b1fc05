// AdamW on the mean gradient.
// SPDX-License-Identifier: Apache-2.0
// Source    Loshchilov & Hutter 2019, arXiv:1711.05101, Algorithm 2 (on the mean gradient:
// G-AdamW). Cost      32 bits up and 32 bits down per coordinate, plus frames. State     m, v:
// first and second moment (n each) float32, equal on all ranks. Deviates  nothing; a tensor without
// a gradient on any rank only decays.
#include "kernels/kernels.h"
#include "methods/dense_option.h"
#include "pride/methods/dense.h"

namespace pride::methods {
namespace {

class GlobalAdamW final : public Method {
 public:
  explicit GlobalAdamW(const MethodContext& ctx)
      : dense_(dense_rule("adamw", ctx.options.at("dense"))),
        m_(ctx.layout.flat_size()),
        v_(ctx.layout.flat_size()) {}

  void encode(const Bucket& b, ConstView g, const StepContext& ctx, Wire& w) override {
    encode_dense(b, g, ctx, dense_, w);
  }

  // g = mean over ranks
  void exchange(Communicator& c, const Bucket& b, const StepContext& ctx, Wire& w) override {
    exchange::dense_mean(c, b, ctx, dense_, w);
  }

  void apply(const Bucket& b, const Wire& w, const StepContext& ctx, View x) override {
    for (std::size_t j = 0; j < b.shards.size(); ++j) {
      for (std::size_t k = 0; k < b.shards[j].pieces.size(); ++k) {
        const Piece& p = b.shards[j].pieces[k];
        const StepScalars& s = ctx.groups[static_cast<std::size_t>(p.group)];
        if (exchange::nobody_has(w, j, k)) {
          kernels::apply_decay(s.decay, x.f32(p.begin, p.end));
        } else {
          step_piece(exchange::mean_of(w, b, p), s, p, x.f32(p.begin, p.end));
        }
      }
    }
  }

  Cost cost(std::span<const Bucket> buckets, int rank, std::int64_t) const override {
    return exchange::dense_cost(buckets, rank, dense_);
  }

  void save(StateWriter& out) const override {
    out.buffer("m", m_);
    out.buffer("v", v_);
  }
  void load(StateReader& in) override {
    in.buffer("m", m_);
    in.buffer("v", v_);
  }
  std::uint64_t state_floats() const override { return m_.size() + v_.size(); }

 private:
  // m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;  x = (1 - lr wd) x - lr mhat / (sqrt(vhat) + eps)
  void step_piece(std::span<const float> g, const StepScalars& s, const Piece& p,
                  std::span<float> x) {
    const kernels::AdamScalars a{s.beta1,     s.one_minus_beta1, s.beta2, s.one_minus_beta2,
                                 s.adam_step, s.adam_sqrt_bias2, s.eps,   s.decay};
    kernels::adamw(g, a, m_.span().subspan(p.begin, p.n()), v_.span().subspan(p.begin, p.n()), x);
  }

  exchange::Dense dense_;
  FlatBuffer m_, v_;
};

}  // namespace

std::unique_ptr<Method> make_adamw(const MethodContext& ctx) {
  return std::make_unique<GlobalAdamW>(ctx);
}

MethodInfo adamw_info(int) {
  MethodInfo info;
  info.title = "AdamW on the mean gradient";
  info.source =
      "Loshchilov & Hutter 2019, arXiv:1711.05101, Algorithm 2 (on the mean gradient: G-AdamW)";
  info.bits_up = 32;
  info.bits_down = 32;
  info.state_floats = 2;
  info.default_lr = 1e-3;
  info.default_beta1 = 0.9;
  info.default_beta2 = 0.999;
  info.default_eps = 1e-8;
  info.options = {dense_option()};
  return info;
}

}  // namespace pride::methods
