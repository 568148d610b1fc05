// Samples of tensors on a device.
// SPDX-License-Identifier: Apache-2.0
#include "codecs/samples.h"
#include "methods/dlion.h"
#include "methods/vote_probe.h"

namespace pride::methods {

// Calls body(shard, piece, samples, first, n) for each piece with samples. `samples`: which of its
// coordinates they are. They are the bucket's samples [first, first + n).
template <typename Body>
void VoteProbe::for_pieces(const Bucket& bucket, const Body& body) const {
  std::size_t first = 0;
  for (std::size_t j = 0; j < bucket.shards.size(); ++j) {
    for (const Piece& piece : bucket.shards[j].pieces) {
      const Tensor& t = tensors_[piece.tensor];
      const std::size_t low = (piece.begin - t.offset + t.stride - 1) / t.stride;
      const std::size_t high = (piece.end - t.offset + t.stride - 1) / t.stride;
      if (low == high) continue;
      body(j, piece, {.first = t.offset + low * t.stride - piece.begin, .stride = t.stride}, first,
           high - low);
      first += high - low;
    }
  }
}

void VoteProbe::blends_on_device(Space& space, const Bucket& bucket, const StepContext& ctx,
                                 GradientView grad, std::span<const float> m,
                                 std::span<const float> e, Wire& wire) const {
  const SampleView frame(wire.up[0].span().data(), samples_in(bucket).size());
  const auto staged = space.stage(frame.u);
  for_pieces(bucket, [&](std::size_t, const Piece& p, LevelKernels::Samples at, std::size_t first,
                         std::size_t n) {
    const auto out = staged.subspan(first, n);
    if (ctx.is_unused(p.tensor)) return space.fill(out, 0);
    space.levels()->sample_blends(
        {grad.of(p), lion_blend(ctx.scalars_of(p)), m.subspan(p.begin, p.n()),
         e.empty() ? e : e.subspan(p.begin, p.n())},
        at, out);
  });
  space.send(staged, frame.u);
}

void VoteProbe::results_on_device(Space& space, const Bucket& bucket, const StepContext& ctx,
                                  std::span<const float> m, const SentLines& sent,
                                  Wire& wire) const {
  const SampleView frame(wire.up[0].span().data(), samples_in(bucket).size());
  const auto momenta = space.stage(frame.m);
  const auto levels = space.stage(frame.q);
  for_pieces(bucket, [&](std::size_t j, const Piece& p, LevelKernels::Samples at, std::size_t first,
                         std::size_t n) {
    LevelKernels::Lines lines;
    lines.shape.bits = 0;  // kNoLevel
    if (!ctx.is_unused(p.tensor)) lines = sent(j, p);
    space.levels()->sample_levels(m.subspan(p.begin, p.n()), lines, at, momenta.subspan(first, n),
                                  levels.subspan(first, n));
  });
  space.send(momenta, frame.m);
  space.send(levels, frame.q);
  clear_padding(frame.q);
}

}  // namespace pride::methods
