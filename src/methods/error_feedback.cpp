// Error feedback, block by block: all data of a block stay in the L1 cache.
// SPDX-License-Identifier: Apache-2.0
#include "methods/error_feedback.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "codecs/hash_keys.h"

namespace pride::methods {
namespace {

using ScaleValues = std::array<float, kScaleBlock>;
alignas(64) constexpr ScaleValues kZeros{};

// Only a tensor that no rank uses is skipped: a tensor unused here has a gradient of zero.
std::span<const float> gradient_of(const Flight& flight, const Piece& p, const ScaleBlock& b,
                                   const StepContext& ctx, ScaleValues& room) {
  if (ctx.is_unused(p.tensor)) return std::span(kZeros).first(b.n());
  return flight.grad.read(p.tensor, b.begin, b.end, std::span(room));
}

// C(p) = scale * sign(p): fills the words and returns the scale, which is not finite if p is not.
float compress(std::span<const float> p, Norm norm, kernels::HashWords zeros,
               std::span<std::uint64_t> signs) {
  kernels::pack_signs(p, zeros, signs);
  const auto n = static_cast<double>(p.size());
  const double scale =
      norm == Norm::kMeanAbs ? kernels::sum_abs(p) / n : std::sqrt(kernels::sum_squares(p) / n);
  return static_cast<float>(scale);
}

}  // namespace

ErrorFeedback::ErrorFeedback(StateTable& state, FlatBuffer& m, Norm norm, FeedbackOf feedback)
    : m_(m),
      error_(state.add("error", StateKind::kLocal)),
      server_error_(state.add("server_error", StateKind::kServer)),
      norm_(norm),
      feedback_(std::move(feedback)) {}

std::vector<Part> ErrorFeedback::parts(const Bucket& bucket) const {
  std::vector<Part> parts;
  parts.push_back(sharded_part(bucket, scaled_sign_frames(), scaled_sign_frames()));
  return parts;
}

void ErrorFeedback::encode(const Bucket& bucket, const StepContext& ctx, Flight& flight) const {
  alignas(64) ScaleValues room, widened;
  Wire& wire = flight.wire(0);
  for (std::size_t j = 0; j < bucket.shards.size(); ++j) {
    const Shard& shard = bucket.shards[j];
    const ScaledSignView view(wire.up[j].span().data(), shard);
    clear_padding(view.scales);
    const auto blocks = scale_blocks(shard);
    for (std::size_t k = 0; k < blocks.size(); ++k) {
      const ScaleBlock& b = blocks[k];
      const Piece& piece = shard.pieces[b.piece];
      const auto p = std::span(room).first(b.n());
      kernels::feedback(gradient_of(flight, piece, b, ctx, widened),
                        m_.span().subspan(b.begin, b.n()), error_.span().subspan(b.begin, b.n()),
                        feedback_(ctx.scalars_of(piece)), p);
      view.scales[k] = compress(p, norm_, zero_words(ctx.seed, ctx.step, ctx.rank, b.begin / 64),
                                view.signs_of(b));
      // NaN or Inf in the gradient, or a sum that overflows here, makes the scale non-finite
      if (!std::isfinite(view.scales[k]) && !wire.non_finite) {
        wire.non_finite = NonFinite{ctx.rank, static_cast<std::uint32_t>(piece.tensor)};
      }
    }
  }
}

// pbar = mean of the rows + e_s;  Delta = C(pbar);  e_s = pbar - Delta where some rank has the
// tensor
void ErrorFeedback::serve(const Shard& shard, const Ballots& up, const Round& round,
                          Reply& reply) const {
  alignas(64) ScaleValues room;
  const ScaledSignView out(reply.head.data(), shard);
  combine_unused(up.frames, shard, out.unused);
  clear_padding(out.scales);
  std::vector<ScaledSignView<const std::byte>> views;
  for (const Frame& frame : up.frames) views.emplace_back(frame.head.data(), shard);
  const auto old_error = server_error_.span().subspan(shard.begin, shard.size());
  reply.pending.resize(sizeof(float) * shard.size());
  std::ranges::copy(old_error, reply.pending.floats().begin());

  const auto blocks = scale_blocks(shard);
  for (std::size_t k = 0; k < blocks.size(); ++k) {
    const ScaleBlock& b = blocks[k];
    const auto signs = out.signs_of(b);
    if (bit_at(out.unused, b.piece)) {
      std::ranges::fill(signs, std::uint64_t{0});
      out.scales[k] = 0;
      continue;
    }
    std::vector<kernels::ScaledRow> rows;
    for (const auto& view : views) rows.push_back({view.signs_of(b).data(), view.scales[k]});
    const auto pbar = std::span(room).first(b.n());
    const std::size_t at = b.begin - shard.begin;
    kernels::mean_of_signs(rows, round.voters, old_error.subspan(at, b.n()), pbar);
    out.scales[k] = compress(pbar, norm_, tie_words(round.seed, round.step, b.begin / 64), signs);
    kernels::keep_remainder(pbar, signs, out.scales[k], reply.pending.floats().subspan(at, b.n()));
    if (!std::isfinite(out.scales[k]) && !reply.non_finite) {
      const auto tensor = static_cast<std::uint32_t>(shard.pieces[b.piece].tensor);
      reply.non_finite = NonFinite{NonFinite::kSum, tensor};
    }
  }
}

void ErrorFeedback::settle(const Shard& shard, std::span<const float> pending) {
  std::ranges::copy(pending, server_error_.span().subspan(shard.begin).begin());
}

// e = p - C(p), and the method's own step for Delta
void ErrorFeedback::apply(const Bucket& bucket, const Flight& flight, const StepContext& ctx,
                          View x, const StepBlock& step) {
  alignas(64) ScaleValues widened;
  const Wire& wire = flight.wire(0);
  for (std::size_t j = 0; j < bucket.shards.size(); ++j) {
    const Shard& shard = bucket.shards[j];
    const ScaledSignView sent(wire.up[j].span().data(), shard);
    const ScaledSignView result(wire.down[j].span().data(), shard);
    const auto blocks = scale_blocks(shard);
    for (std::size_t k = 0; k < blocks.size(); ++k) {
      const ScaleBlock& b = blocks[k];
      const Piece& piece = shard.pieces[b.piece];
      const StepScalars s = ctx.scalars_of(piece);
      if (bit_at(result.unused, b.piece)) {
        kernels::apply_decay(s.decay, x.f32(piece.tensor, b.begin, b.end));
        continue;
      }
      const auto m = m_.span().subspan(b.begin, b.n());
      kernels::keep_feedback(gradient_of(flight, piece, b, ctx, widened), feedback_(s),
                             sent.signs_of(b), sent.scales[k], m,
                             error_.span().subspan(b.begin, b.n()));
      step(b, {result.signs_of(b), result.scales[k]}, s, m, x.f32(piece.tensor, b.begin, b.end));
    }
  }
}

}  // namespace pride::methods
