// Averaging of momenta on a device: in levels, without a copy to the host.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "methods/momentum_sync.h"

namespace pride::methods {

// Calls body(range, first) for the parts of ranges in a shard of the values. The momenta of `range`
// are the shard's values from `first` on.
template <typename Body>
void MomentumSync::for_parts(std::span<const Range> ranges, const Shard& shard, const Body& body) {
  std::size_t at = 0;
  for (const Range& r : ranges) {
    const std::size_t begin = std::max(shard.begin, at), end = std::min(shard.end, at + r.n());
    if (begin < end) {
      const std::size_t m = r.begin + (begin - at);
      body(Range{m, m + (end - begin), r.tensor}, begin - shard.begin);
    }
    at += r.n();
  }
}

void MomentumSync::encode_on_device(Space& space, const Bucket& bucket, const StepContext& ctx,
                                    std::span<const float> m, const Part& part, Wire& wire) const {
  const auto ranges = due(bucket, ctx.step);
  space.stage_block(wire.up_block.span());
  std::uint32_t* const watched = space.watch(wire.fault_word());
  for (std::size_t j = 0; j < part.shards.size(); ++j) {
    const Shard& shard = part.shards[j];
    const ValueView frame(wire.up[j].span().data(), shard.size(), format_);
    clear_padding(frame.scales);
    const auto scales = space.stage(frame.scales);
    const auto lines = space.stage(frame.lines);
    for_parts(ranges, shard, [&](const Range& r, std::size_t first) {
      const std::size_t n = r.n() / 64;
      space.run(kernels::WriteValues{
          m.subspan(r.begin, r.n()),
          scales.subspan(first / 64, n),
          {.shape = frame.shape, .first_word = first / 64, .n_words = n, .words = lines},
          {watched, static_cast<std::uint32_t>(r.tensor)}});
    });
    space.send(scales, frame.scales);
    space.send(lines, frame.lines);
  }
  space.report(watched, wire.fault_word());
}

void MomentumSync::apply_on_device(Space& space, const Bucket& bucket, const StepContext& ctx,
                                   const Part& part, const Wire& wire, std::span<float> m) const {
  const auto ranges = due(bucket, ctx.step);
  space.bring_block(wire.down_block.span());
  for (std::size_t j = 0; j < part.shards.size(); ++j) {
    const Shard& shard = part.shards[j];
    const ValueView frame(wire.down[j].span().data(), shard.size(), format_);
    const auto scales = space.bring(frame.scales);
    const auto lines = space.bring(frame.lines);
    for_parts(ranges, shard, [&](const Range& r, std::size_t first) {
      space.run(kernels::ReadValues{scales.subspan(first / 64, r.n() / 64), lines, frame.shape,
                                    first / 64, m.subspan(r.begin, r.n())});
    });
  }
}

}  // namespace pride::methods
