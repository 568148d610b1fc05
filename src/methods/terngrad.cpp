// TernGrad.
// SPDX-License-Identifier: Apache-2.0
// Source    Wen et al. 2017, arXiv:1705.07878, Algorithm 1; clipping of Section 5, scaler sharing
//           and parameter localisation of Section 3.
// Cost      2 bits up and bit_width(2N) bits down per coordinate, one float a tensor to each rank.
// State     m: momentum (n) float32, equal on all ranks.
// Deviates  2 bits a code rather than log2(3), whole bit planes rather than log2(2N+1) bits; the
//           last layer is treated as the others; weight decay is decoupled.
#include "pride/methods/terngrad.h"

#include <bit>
#include <cmath>
#include <limits>

#include "codecs/payload.h"
#include "codecs/ternary.h"
#include "exchange/scales.h"
#include "exchange/ternary_sum.h"
#include "kernels/kernels.h"
#include "kernels/ternary.h"
#include "methods/options.h"

namespace pride::methods {
namespace {

class TernGrad final : public Method {
 public:
  explicit TernGrad(const MethodContext& ctx)
      : layout_(ctx.layout),
        clip_(number_option("terngrad", ctx, "clip", 0, 1e6)),
        nesterov_(yes_no_option("terngrad", ctx, "nesterov")),
        limits_(ctx.layout.tensors().size()),
        scales_(limits_.size()),
        m_(ctx.layout.flat_size()) {}

  bool needs_whole_gradient() const noexcept override { return true; }

  // s_i = max |clip(g_i)| of each tensor;  s = max over ranks
  void agree(Communicator& c, const StepContext& ctx, ConstView g) override {
    poison_.reset();
    for (std::size_t t = 0; t < scales_.size(); ++t) {
      const TensorSlot& slot = layout_.tensors()[t];
      scales_[t] = limits_[t] = 0;
      if (!ctx.is_absent(t)) measure(g.f32(slot.offset, slot.offset + slot.n), t, ctx.rank);
    }
    exchange::share_largest(c, ctx, scales_);
  }

  // t = s sign(g) b,  b = 1 with probability |clip(g)| / s
  void encode(const Bucket& b, ConstView g, const StepContext& ctx, Wire& w) override {
    exchange::prepare_ternary(b, ctx, w);
    w.poison = poison_;
    if (poison_) return;
    for (std::size_t j = 0; j < b.shards.size(); ++j) {
      encode_shard(b.shards[j], g, ctx, w.up[j].span());
    }
  }

  void exchange(Communicator& c, const Bucket& b, const StepContext& ctx, Wire& w) override {
    exchange::ternary_sum(c, b, ctx, w);
  }

  // g = s (sum of t) / N;  m = mu m + g;  x = (1 - lr wd) x - lr m
  void apply(const Bucket& b, const Wire& w, const StepContext& ctx, View x) override {
    for (std::size_t j = 0; j < b.shards.size(); ++j) {
      const SumFrame at(b.shards[j], ctx.world);
      const auto frame = w.down[j].span();
      const auto& pieces = b.shards[j].pieces;
      const auto present = values_at<std::uint16_t>(frame, at.present_at, pieces.size());
      auto planes = words_at(frame, at.planes_at, at.n_planes * at.plane_words);
      for (std::size_t k = 0; k < pieces.size(); ++k) {
        apply_piece(pieces[k], planes, at, present[k], ctx, x.f32(pieces[k].begin, pieces[k].end));
        planes = planes.subspan(pieces[k].n_words());
      }
    }
  }

  Cost cost(std::span<const Bucket> buckets, int rank, std::int64_t) const override {
    Cost cost = exchange::ternary_cost(buckets, rank);
    const std::size_t world = buckets.empty() ? 1 : buckets.front().shards.size();
    cost.bytes_up += exchange::scales_cost(scales_.size(), static_cast<int>(world)).bytes_up;
    return cost;
  }

  void save(StateWriter& out) const override { out.buffer("m", m_); }
  void load(StateReader& in) override { in.buffer("m", m_); }
  std::uint64_t state_floats() const override { return m_.size(); }

 private:
  // clipping at c sigma; sigma is the standard deviation of this rank's tensor
  void measure(std::span<const float> g, std::size_t t, int rank) {
    if (kernels::first_non_finite(g) != kernels::kAllFinite) {
      if (!poison_) poison_ = Poison{rank, static_cast<std::uint32_t>(t)};
      return;
    }
    const auto n = static_cast<double>(g.size());
    const double mean = kernels::sum(g) / n;
    const double variance = std::max(0.0, kernels::sum_squares(g) / n - mean * mean);
    limits_[t] = std::numeric_limits<float>::max();
    // a tensor whose values are all equal has no deviation, and nothing to clip
    if (clip_ > 0 && variance > 0) {
      limits_[t] = static_cast<float>(
          std::min(clip_ * std::sqrt(variance), double{std::numeric_limits<float>::max()}));
    }
    scales_[t] = std::min(kernels::max_abs(g), limits_[t]);
  }

  void encode_shard(const Shard& shard, ConstView g, const StepContext& ctx,
                    std::span<std::byte> frame) const {
    const TernaryFrame at(shard);
    std::size_t word = 0;
    for (const Piece& p : shard.pieces) {
      if (!ctx.is_absent(p.tensor)) {
        kernels::ternarise(g.f32(p.begin, p.end), limits_[p.tensor], scales_[p.tensor],
                           {ctx.seed, ctx.step, ctx.rank, p.begin},
                           words_at(frame, at.plus_at + 8 * word, p.n_words()),
                           words_at(frame, at.not_minus_at + 8 * word, p.n_words()));
      }
      word += p.n_words();
    }
  }

  void apply_piece(const Piece& p, std::span<const std::uint64_t> planes, const SumFrame& at,
                   int present, const StepContext& ctx, std::span<float> x) {
    const StepScalars& s = ctx.groups[static_cast<std::size_t>(p.group)];
    if (present == 0) return kernels::apply_decay(s.decay, x);
    float g[1024];
    for (std::size_t i = 0; i < x.size(); i += std::size(g)) {
      const std::size_t n = std::min(std::size(g), x.size() - i);
      kernels::sums_to_floats(planes.subspan(i / 64), at.n_planes, at.plane_words, present,
                              ctx.world, scales_[p.tensor], std::span(g).first(n));
      kernels::sgd_momentum(std::span(g).first(n), s.beta1, nesterov_, {s.decay, s.lr},
                            m_.span().subspan(p.begin + i, n), x.subspan(i, n));
    }
  }

  Layout layout_;
  double clip_;
  bool nesterov_;
  std::vector<float> limits_, scales_;  // of this step, by tensor; scales are those of all ranks
  std::optional<Poison> poison_;        // of this rank's gradients, this step
  FlatBuffer m_;
};

}  // namespace

std::unique_ptr<Method> make_terngrad(const MethodContext& ctx) {
  return std::make_unique<TernGrad>(ctx);
}

MethodInfo terngrad_info(int world) {
  MethodInfo info;
  info.title = "TernGrad";
  info.source = "Wen et al. 2017, arXiv:1705.07878, Algorithm 1";
  info.bits_up = 2;
  info.bits_down = std::bit_width(2 * static_cast<unsigned>(world));
  info.growth = "log N";
  info.rounds = 3;
  info.max_world = exchange::kMaxTernaryWorld;
  info.state_floats = 1;
  info.default_lr = 0.1;
  info.default_beta1 = 0.9;
  info.options = {{"clip", "2.5", "gradients are clipped at so many standard deviations; 0: not"},
                  {"nesterov", "no", "'yes' takes Nesterov's momentum"}};
  return info;
}

}  // namespace pride::methods
