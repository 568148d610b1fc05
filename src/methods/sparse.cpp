// Methods that send a few large entries and keep the rest for later steps.
// SPDX-License-Identifier: Apache-2.0
// Source    dgc: Lin et al. 2017, arXiv:1712.01887, Algorithms 1 and 4, Sections 3.2 and 3.3;
//           graddrop: Aji & Heafield 2017, arXiv:1704.05021, Algorithm 1.
// Cost      at most ratio (34 + log2(1/ratio)) bits per coordinate to each other rank, plus frames:
//           grows with N.
// State     v: residual (n); dgc also u: momentum (n); float32, local to each rank. Sent entries
//           are cleared in both.
// Deviates  exactly the largest entries rather than those above a sampled threshold; all tensors
//           are treated alike; weight decay is decoupled; dgc's sparsity warm-up is a smooth decay.
#include "codecs/sparse.h"

#include <algorithm>
#include <cmath>

#include "kernels/kernels.h"
#include "kernels/sparse.h"
#include "methods/registry.h"
#include "pride/error.h"

namespace pride::methods {
namespace {

constexpr double kDefaultRatio = 0.04;  // compression rate of Liu et al. 2024, Section 5

// A residual that accumulates gradients; its largest entries are sent and cleared.
class SparseMethod : public Method {
 public:
  // `global`: one threshold for all tensors instead of one for each.
  SparseMethod(const MethodContext& ctx, bool global)
      : layout_(ctx.layout),
        world_(ctx.world),
        ratio_(ctx.options.number("ratio", 0, 1)),
        global_(global),
        v_(state_.add("v", StateKind::kLocal)) {
    PRIDE_CHECK(ratio_ > 0, ctx.options.method(), ": option ratio = 0: nothing would ever be sent");
  }

  Protocol protocol(const SharedContext& shared) const override {
    const std::size_t k = most_entries(shared.step);
    const auto peers = static_cast<std::uint64_t>(shared.voters - 1);
    return {.whole_gradient = true, .slack = [=](std::size_t n_coords, std::size_t n_buckets) {
              return peers * sparse_bytes_bound(n_coords, k, n_buckets);
            }};
  }
  std::vector<Part> parts(const Bucket& b, const SharedContext&) const override {
    std::vector<Part> parts;
    parts.push_back(one_shot_part(b, sparse_frames(), {.width = sizeof(float)}));
    return parts;
  }

  // A rank with a bad gradient neither accumulates nor sends: its residual stays finite.
  void encode_preliminary(const StepContext& ctx, GradientView g, Wire&) override {
    mask_.assign(layout_.flat_size() / 64, 0);
    non_finite_.reset();
    for (std::size_t t = 0; t < layout_.tensors().size() && !non_finite_; ++t) {
      if (ctx.is_unused(t) || kernels::first_non_finite(slot_of(g, t)) == kernels::kAllFinite) {
        continue;
      }
      non_finite_ = NonFinite{ctx.rank, static_cast<std::uint32_t>(t)};
    }
    if (non_finite_) return;
    accumulate(ctx, g);
    select(ctx);
  }

  void encode(const Bucket& b, const StepContext& ctx, Flight& flight) override {
    Wire& wire = flight.wire(0);
    const std::span<const float> values = v_.span().subspan(b.begin, b.size());
    write_sparse(mask_of(b), values, wire.up[0]);
    wire.room.resize(sizeof(float) * b.size());
    wire.down_body[0] = wire.room.span();
    wire.non_finite = non_finite_;
    // a sum of finite gradients may be Inf, which is then the largest and would be sent
    const std::size_t bad = non_finite_ ? kernels::kAllFinite : kernels::first_non_finite(values);
    if (bad != kernels::kAllFinite) wire.non_finite = non_finite_at(ctx.rank, b.begin + bad);
  }

  // The mean of the entries, added in rank order; coordinates without an entry count as 0.
  void serve(const Part&, const Shard& shard, const VoterFrames& voters,
             const SharedContext& shared, Reply& reply) const override {
    const std::span mean(reinterpret_cast<float*>(reply.body.data()), shard.size());
    std::ranges::fill(mean, 0.0f);
    for (std::size_t i = 0; i < voters.frames.size(); ++i) {
      add_sparse({voters.frames[i], shard, static_cast<int>(i), voters.where}, mean);
    }
    const float* rows[] = {mean.data()};
    kernels::mean_rows(rows, shared.voters, mean);
    const std::size_t bad = kernels::first_non_finite(mean);
    if (bad != kernels::kAllFinite) {
      reply.non_finite = non_finite_at(NonFinite::kSum, shard.begin + bad);
    }
  }

  // x = (1 - lr wd) x - lr mean
  void apply(const Bucket& b, const Flight& flight, const StepContext& ctx, View x) override {
    const auto mean = flight.wire(0).room.floats();
    for (const Piece& p : flight.parts[0].shards[0].pieces) {
      const StepScalars s = ctx.scalars_of(p);
      x.of(p).for_blocks([&](std::size_t at, std::span<float> part) {
        kernels::sgd(mean.subspan(p.begin - b.begin + at, part.size()), {s.decay, s.lr}, part);
      });
    }
    commit(mask_of(b), b.begin, b.end);
  }

 protected:
  // Accumulates the gradients, all finite, in the residual.
  virtual void accumulate(const StepContext& ctx, GradientView g) = 0;
  // Share of the entries that a step sends.
  virtual double ratio_at(std::int64_t) const { return ratio_; }
  // Clears the sent entries of the residual. `mask` and [begin, end) are those of the bucket.
  virtual void commit(std::span<const std::uint64_t> mask, std::size_t begin, std::size_t end) {
    kernels::clear_selected(mask, v_.span().subspan(begin, end - begin));
  }

  std::span<const float> slot_of(GradientView g, std::size_t t) const {
    const TensorSlot& slot = layout_.tensors()[t];
    return g.read(t, slot.offset, slot.offset + slot.n, room_);
  }
  std::span<float> slot_of(FlatBuffer& buffer, std::size_t t) const {
    const TensorSlot& slot = layout_.tensors()[t];
    return buffer.span().subspan(slot.offset, slot.n);
  }
  const Layout& layout() const noexcept { return layout_; }
  double ratio() const noexcept { return ratio_; }
  int world() const noexcept { return world_; }
  FlatBuffer& residual() noexcept { return v_; }

 private:
  std::size_t entries_of(std::size_t n, std::int64_t step) const {
    // 0.04 * 25 must be 1, in spite of rounding
    const double k = std::ceil(ratio_at(step) * static_cast<double>(n) - 1e-9);
    return std::min(n, static_cast<std::size_t>(std::max(k, 1.0)));
  }
  std::size_t most_entries(std::int64_t step) const {
    if (global_) return entries_of(layout_.n_coords(), step);
    std::size_t most = 0;
    for (const TensorSlot& slot : layout_.tensors()) most += entries_of(slot.n, step);
    return most;
  }

  // Entries of tensors that are unused here are never sent.
  void select(const StepContext& ctx) {
    // padding is zero, and zeros are never among the largest
    kernels::TopK top;
    if (global_) top = kernels::top_k(v_.span(), entries_of(layout_.n_coords(), ctx.step));
    for (std::size_t t = 0; t < layout_.tensors().size(); ++t) {
      const TensorSlot& slot = layout_.tensors()[t];
      const auto mask = std::span(mask_).subspan(slot.offset / 64, words_for(slot.n));
      if (!global_) top = kernels::top_k(slot_of(v_, t), entries_of(slot.n, ctx.step));
      kernels::select(slot_of(v_, t), top, mask);
      if (ctx.is_unused(t)) std::ranges::fill(mask, std::uint64_t{0});
    }
  }
  std::span<const std::uint64_t> mask_of(const Bucket& b) const {
    return std::span(mask_).subspan(b.begin / 64, b.size() / 64);
  }
  NonFinite non_finite_at(int rank, std::size_t coord) const {
    const auto after = std::ranges::upper_bound(layout_.tensors(), coord, {}, &TensorSlot::offset);
    return {rank, static_cast<std::uint32_t>(after - layout_.tensors().begin() - 1)};
  }

  Layout layout_;
  int world_;
  double ratio_;
  bool global_;
  FlatBuffer& v_;
  mutable std::vector<float> room_;      // a tensor's gradient, widened
  std::vector<std::uint64_t> mask_;      // entries to send: a bit for each flat coordinate
  std::optional<NonFinite> non_finite_;  // of this rank's gradients, this step
};

MethodInfo sparse_info(int world) {
  MethodInfo info;
  // value and index of an entry: 32 bits, and at most 2 + log2(1/ratio)
  info.bits_up = kDefaultRatio * (32 + 2 + std::log2(1 / kDefaultRatio));
  info.bits_down = (world - 1) * info.bits_up;
  info.exact_cost = false;
  info.growth = "N";
  info.default_lr = 0.1;
  info.options = {{"ratio", "0.04", "share of each tensor's entries that a step sends"}};
  return info;
}

// --- Gradient dropping. -------------------------------------------------------------------------

class GradientDropping final : public SparseMethod {
 public:
  GradientDropping(const MethodContext& ctx)
      : SparseMethod(ctx, ctx.options.word("threshold", {"tensor", "global"}) == 1) {}

 private:
  // v = v + g;  the largest |v| are sent and cleared in v
  void accumulate(const StepContext& ctx, GradientView g) override {
    for (std::size_t t = 0; t < layout().tensors().size(); ++t) {
      if (ctx.is_unused(t)) continue;
      const auto v = slot_of(residual(), t);
      const float* rows[] = {v.data(), slot_of(g, t).data()};
      kernels::sum_rows(rows, v);
    }
  }
};

// --- Deep gradient compression. -----------------------------------------------------------------

constexpr double kFirstRatio = 0.25;  // of the warm-up: a sparsity of 75 %

class DeepGradientCompression final : public SparseMethod {
 public:
  DeepGradientCompression(const MethodContext& ctx)
      : SparseMethod(ctx, false),
        warmup_steps_(ctx.options.whole("warmup_steps", 0, kMostSteps)),
        clip_(ctx.options.number("clip", 0, 1e30)),
        masking_(ctx.options.yes_no("masking")),
        nesterov_(ctx.options.yes_no("nesterov")),
        u_(state_.add("u", StateKind::kLocal)) {}

 private:
  // momentum correction: u = mu u + g;  v = v + u
  void accumulate(const StepContext& ctx, GradientView g) override {
    const float scale = clip_factor(ctx, g);
    for (std::size_t t = 0; t < layout().tensors().size(); ++t) {
      if (ctx.is_unused(t)) continue;
      const StepScalars& s = ctx.scalars_of_group(layout().tensors()[t].spec.group);
      kernels::correct_momentum(slot_of(g, t), scale, s.beta1, nesterov_, slot_of(u_, t),
                                slot_of(residual(), t));
    }
  }

  // local clipping: |g| of this rank is brought down to clip / sqrt(N)
  float clip_factor(const StepContext& ctx, GradientView g) const {
    if (clip_ == 0) return 1;
    double squares = 0;
    for (std::size_t t = 0; t < layout().tensors().size(); ++t) {
      if (!ctx.is_unused(t)) squares += kernels::sum_squares(slot_of(g, t));
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

  // momentum factor masking: sent entries are cleared in the momentum too
  void commit(std::span<const std::uint64_t> mask, std::size_t begin, std::size_t end) override {
    SparseMethod::commit(mask, begin, end);
    if (masking_) kernels::clear_selected(mask, u_.span().subspan(begin, end - begin));
  }

  std::int64_t warmup_steps_;
  double clip_;
  bool masking_, nesterov_;
  FlatBuffer& u_;
};

}  // namespace

extern const MethodEntry kGradDrop = {
    "graddrop", make<GradientDropping>, [](int world) {
      MethodInfo info = sparse_info(world);
      info.title = "Gradient dropping";
      info.source = "Aji & Heafield 2017, arXiv:1704.05021, Algorithm 1";
      info.options.push_back(
          {"threshold", "tensor",
           "'tensor': each tensor sends its share; 'global': one threshold for the "
           "whole model, as in the paper"});
      return info;
    }};

extern const MethodEntry kDgc = {
    "dgc", make<DeepGradientCompression>, [](int world) {
      MethodInfo info = sparse_info(world);
      info.title = "Deep gradient compression";
      info.source = "Lin et al. 2017, arXiv:1712.01887, Algorithms 1 and 4";
      info.default_beta1 = 0.9;
      info.options.insert(
          info.options.end(),
          {{"warmup_steps", "0", "steps in which the share falls from 0.25 to ratio"},
           {"clip", "0",
            "local clipping: a rank's gradient has at most the 2-norm clip / sqrt(N); 0: no "
            "clipping"},
           {"masking", "yes",
            "momentum factor masking: entries that were sent become 0 in the momentum too"},
           {"nesterov", "no", "'yes': Nesterov's momentum"}});
      return info;
    }};

}  // namespace pride::methods
