// Lion on the mean gradient.
// SPDX-License-Identifier: Apache-2.0
// Source    Chen et al. 2023, arXiv:2302.06675, Program 1 (on the mean gradient: G-Lion).
// Cost      32 bits up and 32 bits down per coordinate, plus frames.
// State     m: momentum (n) float32, equal on all ranks.
// Deviates  nothing; a tensor without a gradient on any rank only decays.
#include "kernels/kernels.h"
#include "methods/dense_option.h"
#include "pride/methods/dense.h"

namespace pride::methods {
namespace {

class GlobalLion final : public Method {
 public:
  explicit GlobalLion(const MethodContext& ctx)
      : dense_(dense_rule("lion", ctx.options.at("dense"))), m_(ctx.layout.flat_size()) {}

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

  void save(StateWriter& out) const override { out.buffer("m", m_); }
  void load(StateReader& in) override { in.buffer("m", m_); }
  std::uint64_t state_floats() const override { return m_.size(); }

 private:
  // x = (1 - lr wd) x - lr sign(b1 m + (1-b1) g);  m = b2 m + (1-b2) g
  void step_piece(std::span<const float> g, const StepScalars& s, const Piece& p,
                  std::span<float> x) {
    const kernels::Blend blend{s.beta1, s.one_minus_beta1, s.beta2, s.one_minus_beta2};
    kernels::dense_lion(g, blend, {s.decay, s.lr}, m_.span().subspan(p.begin, p.n()), x);
  }

  exchange::Dense dense_;
  FlatBuffer m_;
};

}  // namespace

std::unique_ptr<Method> make_lion(const MethodContext& ctx) {
  return std::make_unique<GlobalLion>(ctx);
}

MethodInfo lion_info(int) {
  MethodInfo info;
  info.title = "Lion on the mean gradient";
  info.source = "Chen et al. 2023, arXiv:2302.06675, Program 1 (on the mean gradient: G-Lion)";
  info.bits_up = 32;
  info.bits_down = 32;
  info.state_floats = 1;
  info.default_lr = 1e-4;
  info.default_beta1 = 0.9;
  info.default_beta2 = 0.99;
  info.options = {dense_option()};
  return info;
}

}  // namespace pride::methods
