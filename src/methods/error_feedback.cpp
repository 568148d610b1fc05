// Error feedback: on the host block by block, so that the data of a block stay in the L1 cache.
// SPDX-License-Identifier: Apache-2.0
#include "methods/error_feedback.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "codecs/hash_keys.h"

namespace pride::methods {
namespace {

// Only a tensor that no rank uses is skipped: a tensor unused here has a gradient of zero.
Values gradient_of(const Flight& flight, std::size_t tensor, const ScaleBlock& b,
                   const StepContext& ctx) {
  if (ctx.is_unused(tensor)) return {.n = b.n()};
  return flight.grad.of(tensor, b.begin, b.end);
}

// The scales [first, first + n) of a block, or of several merged ones.
template <typename Float>
kernels::BlockScales<Float> scales_of(std::span<Float> all, const ScaleBlock& b, std::size_t first,
                                      std::size_t n) {
  return {all.subspan(first, n), b.begin % kScaleBlock};
}

// Calls body(block, first, n) for the shard's blocks; on a device the blocks of a piece are merged
// into one. Its scales are [first, first + n).
template <typename Body>
void for_blocks(const Space& space, const Shard& shard, const Body& body) {
  const auto blocks = scale_blocks(shard);
  for (std::size_t k = 0; k < blocks.size();) {
    ScaleBlock b = blocks[k];
    const std::size_t first = k++;
    for (; !space.is_host() && k < blocks.size() && blocks[k].piece == b.piece; ++k) {
      b.end = blocks[k].end;
    }
    body(b, first, k - first);
  }
}

}  // namespace

ErrorFeedback::ErrorFeedback(Space& space, StateTable& state, FlatBuffer& m, kernels::Norm norm,
                             FeedbackOf feedback)
    : space_(space),
      m_(m),
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
  Wire& wire = flight.wire(0);
  space_.begin_frames();
  space_.stage_block(wire.up_block.span());
  std::uint32_t* const watched = space_.watch(wire.fault_word());
  for (std::size_t j = 0; j < bucket.shards.size(); ++j) {
    const Shard& shard = bucket.shards[j];
    const ScaledSignView frame(wire.up[j].span().data(), shard);
    clear_padding(frame.scales);
    ScaledSignView staged = frame;
    staged.signs = space_.stage(frame.signs);
    staged.scales = space_.stage(frame.scales);
    for_blocks(space_, shard, [&](const ScaleBlock& b, std::size_t first, std::size_t n) {
      const Piece& piece = shard.pieces[b.piece];
      // NaN or Inf in the gradient, or a sum that overflows here, makes the scale non-finite
      space_.run(
          kernels::Compress{gradient_of(flight, piece.tensor, b, ctx),
                            feedback_(ctx.scalars_of(piece)),
                            norm_,
                            zero_words(ctx.seed, ctx.step, ctx.rank, piece.in_whole(b.begin)),
                            m_.span().subspan(b.begin, b.n()),
                            error_.span().subspan(b.begin, b.n()),
                            staged.signs_of(b),
                            scales_of(staged.scales, b, first, n),
                            {watched, static_cast<std::uint32_t>(piece.tensor)}});
    });
    space_.send(staged.signs, frame.signs);
    space_.send(staged.scales, frame.scales);
  }
  space_.report(watched, wire.fault_word());
}

// pbar = mean of the rows + e_s;  Delta = C(pbar);  e_s = pbar - Delta where some rank has the
// tensor
void ErrorFeedback::serve(const Shard& shard, const VoterFrames& voters,
                          const SharedContext& shared, Reply& reply) const {
  alignas(64) std::array<float, kScaleBlock> room;
  const ScaledSignView out(reply.head.data(), shard);
  mark_unused_by_all(voters.frames, shard, out.unused);
  clear_padding(out.scales);
  std::vector<ScaledSignView<const std::byte>> views;
  for (const Frame& frame : voters.frames) views.emplace_back(frame.head.data(), shard);
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
    const Piece& piece = shard.pieces[b.piece];
    const std::size_t at = b.begin - shard.begin;
    kernels::mean_of_signs(rows, shared.voters, old_error.subspan(at, b.n()), pbar);
    out.scales[k] = kernels::compress(
        pbar, norm_, tie_words(shared.seed, shared.step, piece.in_whole(b.begin)), signs);
    kernels::keep_remainder(pbar, signs, out.scales[k], reply.pending.floats().subspan(at, b.n()));
    if (!std::isfinite(out.scales[k]) && !reply.non_finite) {
      const auto tensor = static_cast<std::uint32_t>(piece.tensor);
      reply.non_finite = NonFinite{NonFinite::kSum, tensor};
    }
  }
}

// A frame for kernels to read; its unused bits stay on the host.
ScaledSignView<const std::byte> ErrorFeedback::brought(const ByteBuffer& frame,
                                                       const Shard& shard) const {
  ScaledSignView view(frame.span().data(), shard);
  view.signs = space_.upload(view.signs);
  view.scales = space_.upload(view.scales);
  return view;
}

// e = p - C(p), and the method's own step for Delta
void ErrorFeedback::apply(const Bucket& bucket, const Flight& flight, const StepContext& ctx,
                          View x, const StepBlock& step) {
  const Wire& wire = flight.wire(0);
  const Shard& served = bucket.shards[static_cast<std::size_t>(ctx.rank)];
  std::ranges::copy(wire.pending.floats(), server_error_.span().subspan(served.begin).begin());
  space_.begin_frames();
  for (const ByteBuffer* block : {&wire.up_block, &wire.down_block}) {
    space_.upload_block(block->span());
  }
  for (std::size_t j = 0; j < bucket.shards.size(); ++j) {
    const Shard& shard = bucket.shards[j];
    const auto sent = brought(wire.up[j], shard), result = brought(wire.down[j], shard);
    for_blocks(space_, shard, [&](const ScaleBlock& b, std::size_t first, std::size_t n) {
      const std::size_t tensor = shard.pieces[b.piece].tensor;
      const StepScalars s = ctx.scalars_of(shard.pieces[b.piece]);
      const auto part = x.f32(tensor, b.begin, b.end);
      if (bit_at(result.unused, b.piece))
        return space_.run(kernels::ApplyDecay{s.decay.same, part});
      const auto m = m_.span().subspan(b.begin, b.n());
      space_.run(kernels::KeepFeedback{gradient_of(flight, tensor, b, ctx), feedback_(s),
                                       sent.signs_of(b), scales_of(sent.scales, b, first, n), m,
                                       error_.span().subspan(b.begin, b.n())});
      step(b, {result.signs_of(b), scales_of(result.scales, b, first, n)}, s, m, part);
    });
  }
}

}  // namespace pride::methods
