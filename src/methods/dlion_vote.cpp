// Distributed Lion, majority vote.
// SPDX-License-Identifier: Apache-2.0
// Source    Liu et al. 2024, arXiv:2404.00438, Algorithm 1 (MaVo).
// Cost      1 bit up and 1 bit down per coordinate (2 down with tie = zero), plus frames.
// State     m: momentum (n) float32, local to each rank, never sent.
// Deviates  zeros, ties and absent tensors: see docs/wire_format.md.
#include "exchange/sign_vote.h"
#include "methods/lion_signs.h"
#include "pride/error.h"
#include "pride/methods/dlion.h"

namespace pride::methods {
namespace {

class DistributedLionVote final : public Method {
 public:
  explicit DistributedLionVote(const MethodContext& ctx)
      : tie_(tie_rule(ctx.options.at("tie"))), m_(ctx.layout.flat_size()) {}

  // sign(b1 m + (1-b1) g);  m = b2 m + (1-b2) g
  void encode(const Bucket& b, ConstView g, const StepContext& ctx, Wire& w) override {
    exchange::prepare_vote(b, ctx, tie_, w);
    encode_lion_signs(b, g, ctx, m_, w);
  }

  // Delta = sign(sum of signs)
  void exchange(Communicator& c, const Bucket& b, const StepContext& ctx, Wire& w) override {
    exchange::sign_vote(c, b, ctx, tie_, w);
  }

  // x = (1 - lr wd) x - lr Delta
  void apply(const Bucket& b, const Wire& w, const StepContext& ctx, View x) override {
    exchange::apply_vote(b, w, ctx, tie_, x);
  }

  Cost cost(std::span<const Bucket> buckets, int rank, std::int64_t) const override {
    return exchange::vote_cost(buckets, rank, tie_);
  }

  void save(StateWriter& out) const override { out.buffer("m", m_); }
  void load(StateReader& in) override { in.buffer("m", m_); }
  std::uint64_t state_floats() const override { return m_.size(); }

 private:
  static exchange::Tie tie_rule(const std::string& name) {
    if (name == "hash") return exchange::Tie::kHash;
    if (name == "zero") return exchange::Tie::kZero;
    throw InvalidArgument(concat("dlion-vote: option tie = '", name, "': choose hash or zero"));
  }

  exchange::Tie tie_;
  FlatBuffer m_;
};

}  // namespace

std::unique_ptr<Method> make_dlion_vote(const MethodContext& ctx) {
  return std::make_unique<DistributedLionVote>(ctx);
}

MethodInfo dlion_vote_info(int) {
  MethodInfo info;
  info.title = "Distributed Lion, majority vote";
  info.source = "Liu et al. 2024, arXiv:2404.00438, Algorithm 1 (MaVo)";
  info.bits_up = 1;
  info.bits_down = 1;
  info.growth = "none";
  info.state_floats = 1;
  info.default_lr = 1e-4;
  info.default_beta1 = 0.9;
  info.default_beta2 = 0.99;
  info.options = {{"tie", "hash",
                   "a tied vote: 'hash' takes a random bit that all ranks share, 'zero' leaves the "
                   "coordinate (2 bits down)"}};
  return info;
}

}  // namespace pride::methods
