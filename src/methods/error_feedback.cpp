// The way of error feedback, block by block: everything of a block stays in the first cache.
// SPDX-License-Identifier: Apache-2.0
#include "methods/error_feedback.h"

#include <array>
#include <cmath>

#include "codecs/hash_keys.h"
#include "codecs/payload.h"

namespace pride::methods {
namespace {

alignas(64) constexpr std::array<float, kScaleBlock> kZeros{};

const StepScalars& scalars_of(const Shard& shard, const ScaleBlock& b, const StepContext& ctx) {
  return ctx.groups[static_cast<std::size_t>(shard.pieces[b.piece].group)];
}

// Only a tensor that no rank has a gradient for is left out: here its gradient counts as zero.
std::span<const float> gradient_of(const Shard& shard, const ScaleBlock& b, const StepContext& ctx,
                                   std::span<const float> grad, std::size_t grad_begin) {
  if (ctx.is_absent(shard.pieces[b.piece].tensor)) return std::span(kZeros).first(b.n());
  return grad.subspan(b.begin - grad_begin, b.n());
}

}  // namespace

void ErrorFeedbackMethod::encode(const Bucket& b, ConstView g, const StepContext& ctx, Wire& w) {
  exchange::prepare_scaled_signs(b, ctx, w);
  w.dense_up = g.f32(b.begin, b.end);
  w.poison.reset();
  for (std::size_t j = 0; j < b.shards.size(); ++j) {
    encode_shard(b.shards[j], g, ctx, w.up[j].span(), w.poison);
  }
}

void ErrorFeedbackMethod::encode_shard(const Shard& shard, ConstView g, const StepContext& ctx,
                                       std::span<std::byte> frame,
                                       std::optional<Poison>& poison) const {
  alignas(64) std::array<float, kScaleBlock> room;
  const ScaledSignFrame at(shard);
  const auto scales = scales_of(frame, at);
  const std::uint64_t key = zero_key(ctx.seed, ctx.step, ctx.rank);
  const auto blocks = scale_blocks(shard);
  for (std::size_t k = 0; k < blocks.size(); ++k) {
    const ScaleBlock& b = blocks[k];
    const auto p = std::span(room).first(b.n());
    kernels::feedback(gradient_of(shard, b, ctx, {g.data, g.n}, 0),
                      m_.span().subspan(b.begin, b.n()), error_.span().subspan(b.begin, b.n()),
                      feedback(scalars_of(shard, b, ctx)), p);
    scales[k] = exchange::compress(p, norm_, {key, b.begin / 64},
                                   words_at(frame, at.signs_at + 8 * b.first_word, b.n_words()));
    // NaN or Inf in the gradient, or a sum that overflows here: the scale is one as well
    if (!std::isfinite(scales[k]) && !poison) {
      poison = Poison{ctx.rank, static_cast<std::uint32_t>(shard.pieces[b.piece].tensor)};
    }
  }
}

// Delta = C(mean of C(p) + e_s)
void ErrorFeedbackMethod::exchange(Communicator& c, const Bucket& b, const StepContext& ctx,
                                   Wire& w) {
  exchange::scaled_sign_mean(c, b, ctx, norm_, owner_error_, w);
}

void ErrorFeedbackMethod::apply(const Bucket& b, const Wire& w, const StepContext& ctx, View x) {
  for (std::size_t j = 0; j < b.shards.size(); ++j) apply_shard(b, j, w, ctx, x);
  exchange::keep_owner_error(b, ctx, w, owner_error_);
}

// e = p - C(p), and the method's own step for Delta
void ErrorFeedbackMethod::apply_shard(const Bucket& bucket, std::size_t j, const Wire& w,
                                      const StepContext& ctx, View x) {
  const Shard& shard = bucket.shards[j];
  const ScaledSignFrame at(shard);
  const auto blocks = scale_blocks(shard);
  for (std::size_t k = 0; k < blocks.size(); ++k) {
    const ScaleBlock& b = blocks[k];
    const StepScalars& s = scalars_of(shard, b, ctx);
    const exchange::SignBlock delta = exchange::block_of(w.down[j].span(), at, b, k);
    if (delta.absent) {
      kernels::apply_decay(s.decay, x.f32(b.begin, b.end));
      continue;
    }
    const exchange::SignBlock sent = exchange::block_of(w.up[j].span(), at, b, k);
    const auto m = m_.span().subspan(b.begin, b.n());
    kernels::keep_feedback(gradient_of(shard, b, ctx, w.dense_up, bucket.begin), feedback(s),
                           sent.signs, sent.scale, m, error_.span().subspan(b.begin, b.n()));
    step_block(b, delta, ctx, s, m, x.f32(b.begin, b.end));
  }
}

Cost ErrorFeedbackMethod::cost(std::span<const Bucket> buckets, int rank, std::int64_t) const {
  return exchange::scaled_sign_cost(buckets, rank);
}

void ErrorFeedbackMethod::save(StateWriter& out) const {
  out.buffer("m", m_);
  out.buffer("error", error_);
  out.buffer("owner_error", owner_error_);
}

void ErrorFeedbackMethod::load(StateReader& in) {
  in.buffer("m", m_);
  in.buffer("error", error_);
  in.buffer("owner_error", owner_error_);
}

std::uint64_t ErrorFeedbackMethod::state_floats() const {
  return m_.size() + error_.size() + owner_error_.size();
}

}  // namespace pride::methods
