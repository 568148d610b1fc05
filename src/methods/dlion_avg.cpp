// Distributed Lion, average of signs.
// SPDX-License-Identifier: Apache-2.0
// Source    Liu et al. 2024, arXiv:2404.00438, Algorithm 1 (Avg).
// Cost      1 bit up and bit_width(N) bits down per coordinate, plus frames.
// State     m: momentum (n) float32, local to each rank, never sent.
// Deviates  zeros and absent tensors: see docs/wire_format.md. Sent down are bit planes of the
//           count of +, so log2(N+1) bits are rounded up to whole ones.
#include <bit>

#include "exchange/sign_vote.h"
#include "methods/lion_signs.h"
#include "pride/methods/dlion.h"

namespace pride::methods {
namespace {

class DistributedLionAvg final : public Method {
 public:
  explicit DistributedLionAvg(const MethodContext& ctx) : m_(ctx.layout.flat_size()) {}

  // sign(b1 m + (1-b1) g);  m = b2 m + (1-b2) g
  void encode(const Bucket& b, ConstView g, const StepContext& ctx, Wire& w) override {
    exchange::prepare_count(b, ctx, w);
    encode_lion_signs(b, g, ctx, m_, w);
  }

  // c = number of +; S = 2c - N
  void exchange(Communicator& c, const Bucket& b, const StepContext& ctx, Wire& w) override {
    exchange::sign_count(c, b, ctx, w);
  }

  // x = (1 - lr wd) x - lr S / N
  void apply(const Bucket& b, const Wire& w, const StepContext& ctx, View x) override {
    exchange::apply_count(b, w, ctx, x);
  }

  Cost cost(std::span<const Bucket> buckets, int rank, std::int64_t) const override {
    return exchange::count_cost(buckets, rank);
  }

  void save(StateWriter& out) const override { out.buffer("m", m_); }
  void load(StateReader& in) override { in.buffer("m", m_); }
  std::uint64_t state_floats() const override { return m_.size(); }

 private:
  FlatBuffer m_;
};

}  // namespace

std::unique_ptr<Method> make_dlion_avg(const MethodContext& ctx) {
  return std::make_unique<DistributedLionAvg>(ctx);
}

MethodInfo dlion_avg_info(int world) {
  MethodInfo info;
  info.title = "Distributed Lion, average of signs";
  info.source = "Liu et al. 2024, arXiv:2404.00438, Algorithm 1 (Avg)";
  info.bits_up = 1;
  info.bits_down = std::bit_width(static_cast<unsigned>(world));
  info.growth = "log N";
  info.state_floats = 1;
  info.default_lr = 1e-4;
  info.default_beta1 = 0.9;
  info.default_beta2 = 0.99;
  return info;
}

}  // namespace pride::methods
