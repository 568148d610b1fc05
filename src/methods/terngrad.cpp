// TernGrad.
// SPDX-License-Identifier: Apache-2.0
// Source    Wen et al. 2017, arXiv:1705.07878, Algorithm 1; clipping of Section 5, scaler sharing
//           and parameter localisation of Section 3.
// Cost      2 bits up and bit_width(2N) bits down per coordinate, one float a tensor to each rank.
// State     m: momentum (n) float32, equal on all ranks.
// Deviates  2 bits a code rather than log2(3), whole bit planes rather than log2(2N+1) bits; the
//           scale is the largest clipped magnitude (the authors' code: the clipping limit); the
//           last layer is treated as the others; weight decay is decoupled.
#include <algorithm>
#include <cmath>
#include <limits>

#include "codecs/ternary.h"
#include "kernels/kernels.h"
#include "kernels/ternary.h"
#include "methods/registry.h"
#include "methods/shared_scales.h"
#include "rules/rule.h"

namespace pride::methods {
namespace {

class TernGrad final : public Method {
 public:
  TernGrad(const MethodContext& ctx)
      : layout_(ctx.layout),
        clip_(ctx.options.number("clip", 0, 1e6)),
        limits_(ctx.layout.tensors().size()),
        scales_(limits_.size()),
        shared_(SharedScales::Rule::kLargest, limits_.size()),
        sgdm_(state_, StateKind::kShared, Space::host(), ctx.options.yes_no("nesterov")) {}

  Protocol protocol(const SharedContext&) const override {
    return {.whole_gradient = true, .preliminary = shared_.part(), .same_apply = true};
  }
  std::vector<Part> parts(const Bucket& b, const SharedContext& shared) const override {
    std::vector<Part> parts;
    parts.push_back(sharded_part(b, ternary_frames(), sum_frames(shared.voters)));
    return parts;
  }

  // s_i = max |clip(g_i)| of each tensor;  s = max over ranks
  void encode_preliminary(const StepContext& ctx, GradientView g, Wire& preliminary) override {
    non_finite_.reset();
    for (std::size_t t = 0; t < scales_.size(); ++t) {
      const TensorSlot& slot = layout_.tensors()[t];
      scales_[t] = limits_[t] = 0;
      if (ctx.is_unused(t)) continue;
      measure(g.read(t, slot.offset, slot.offset + slot.n, room_), t, ctx.rank);
    }
    shared_.write(scales_, preliminary);
  }
  void take_preliminary(const StepContext&, const Wire& preliminary) override {
    shared_.read(preliminary, scales_);
  }

  // t = s sign(g) b,  b = 1 with probability |clip(g)| / s
  void encode(const Bucket& b, const StepContext& ctx, Flight& flight) override {
    Wire& wire = flight.wire(0);
    wire.non_finite = non_finite_;
    for (std::size_t j = 0; j < b.shards.size(); ++j) {
      const auto frame = wire.up[j].span();
      const TernaryView view(frame.data(), b.shards[j]);
      for (const Piece& p : b.shards[j].pieces) {
        const auto plus = words_of(view.plus, p), not_minus = words_of(view.not_minus, p);
        if (ctx.is_unused(p.tensor) || non_finite_) {
          std::ranges::fill(plus, 0);
          std::ranges::fill(not_minus, 0);
        } else {
          flight.grad.for_blocks(
              p.tensor, p.begin, p.end, [&](std::size_t at, std::span<const float> g) {
                const std::size_t word = (at - p.begin) / 64, n = words_for(g.size());
                kernels::ternarise(g, limits_[p.tensor], scales_[p.tensor],
                                   {ctx.seed, ctx.step, ctx.rank, p.in_whole(at)},
                                   plus.subspan(word, n), not_minus.subspan(word, n));
              });
        }
      }
    }
  }

  // t + 1 is the sum of a code's two bits: the sum over ranks is a count over twice as many rows
  void serve(const Part& part, const Shard& shard, const VoterFrames& voters,
             const SharedContext& shared, Reply& reply) const override {
    if (part.id == SharedScales::kPart) return shared_.serve(voters, reply);
    const SumView down(reply.head.data(), shard, shared.voters);
    std::ranges::fill(reply.head.subspan(kHeaderBytes), std::byte{0});
    std::vector<std::uint64_t> planes;
    for (const Run& run : runs_of(shard, voters.frames)) {
      std::vector<const std::uint64_t*> rows;
      for (const std::size_t i : run.frames) {
        const TernaryView view(voters.frames[i].head.data(), shard);
        rows.push_back(view.plus.data() + run.first_word);
        rows.push_back(view.not_minus.data() + run.first_word);
      }
      planes.resize(down.n_planes * run.n_words);
      kernels::count(rows, run.n_words, down.n_planes, planes);
      for (std::size_t p = 0; p < down.n_planes; ++p) {
        std::ranges::copy(std::span(planes).subspan(p * run.n_words, run.n_words),
                          down.planes.subspan(p * down.plane_words + run.first_word).begin());
      }
    }
    count_users(shard, voters.frames, down.users);
  }

  // g = s (sum of t) / N;  m = mu m + g;  x = (1 - lr wd) x - lr m
  void apply(const Bucket& b, const Flight& flight, const StepContext& ctx, View x) override {
    alignas(64) float g[1024];
    for (std::size_t j = 0; j < b.shards.size(); ++j) {
      const SumView view(flight.wire(0).down[j].span().data(), b.shards[j], ctx.voters);
      for (std::size_t k = 0; k < view.users.size(); ++k) {
        const Piece& p = b.shards[j].pieces[k];
        const StepScalars s = ctx.scalars_of(p);
        if (view.users[k] == 0) Space::host().run(kernels::ApplyDecay{s.decay.same, x.of(p)});
        for (std::size_t i = 0; view.users[k] > 0 && i < p.n(); i += std::size(g)) {
          const std::size_t n = std::min(std::size(g), p.n() - i);
          kernels::sums_to_floats(view.planes.subspan(p.first_word + i / 64), view.n_planes,
                                  view.plane_words, view.users[k], ctx.voters, scales_[p.tensor],
                                  std::span(g).first(n));
          sgdm_.step(p.begin + i, Values::of(std::span(g).first(n)), s,
                     x.f32(p.tensor, p.begin + i, p.begin + i + n));
        }
      }
    }
  }

 private:
  // clipping at c sigma; sigma is the standard deviation of this rank's tensor
  void measure(std::span<const float> g, std::size_t t, int rank) {
    if (kernels::first_non_finite(g) != kernels::kAllFinite) {
      if (!non_finite_) non_finite_ = NonFinite{rank, static_cast<std::uint32_t>(t)};
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

  Layout layout_;
  double clip_;
  std::vector<float> limits_, scales_;   // of this step, by tensor; scales are those of all ranks
  std::optional<NonFinite> non_finite_;  // of this rank's gradients, this step
  std::vector<float> room_;              // a tensor's gradient, widened
  SharedScales shared_;
  rules::SgdMomentum sgdm_;
};

}  // namespace

extern const MethodEntry kTernGrad = {
    "terngrad", make<TernGrad>, [](int world) {
      MethodInfo info;
      info.title = "TernGrad";
      info.source = "Wen et al. 2017, arXiv:1705.07878, Algorithm 1";
      info.bits_up = 2;
      info.bits_down = std::bit_width(2 * static_cast<unsigned>(world));
      info.growth = "log N";
      info.max_world = kMaxTernaryWorld;
      info.default_lr = 0.1;
      info.default_beta1 = 0.9;
      info.options = {
          {"clip", "2.5", "gradients are clipped at this many standard deviations; 0: no clipping"},
          {"nesterov", "no", "'yes': Nesterov's momentum"}};
      return info;
    }};

}  // namespace pride::methods
