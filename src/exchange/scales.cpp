// SPDX-License-Identifier: Apache-2.0
#include "exchange/scales.h"

#include <algorithm>
#include <vector>

#include "codecs/frame.h"
#include "codecs/payload.h"
#include "codecs/ternary.h"
#include "pride/wire.h"

namespace pride::exchange {
namespace {

constexpr const char* kWhere = "share_largest";

FrameHeader scales_header(std::size_t n_tensors, int sender, const StepContext& ctx) {
  FrameHeader h;
  h.codec = Codec::kScales;
  h.rank = static_cast<std::uint16_t>(sender);
  h.step = static_cast<std::uint64_t>(ctx.step);
  h.n_coords = n_tensors;
  h.scalars = ctx.scalars_digest;
  return h;
}

}  // namespace

void share_largest(Communicator& comm, const StepContext& ctx, std::span<float> scales) {
  const Communicator::Scope scope(comm, kWhere);
  const ScalesFrame at(scales.size());
  const auto world = static_cast<std::size_t>(ctx.world);
  ByteBuffer all;
  all.resize(world * at.bytes);
  const auto frame_of = [&](std::size_t r) { return all.span().subspan(r * at.bytes, at.bytes); };

  const auto own = frame_of(static_cast<std::size_t>(ctx.rank));
  std::ranges::fill(own, std::byte{0});
  std::ranges::copy(scales, values_at<float>(own, at.scales_at, scales.size()).begin());
  seal(scales_header(scales.size(), ctx.rank, ctx), own.first(kHeaderBytes),
       {own.subspan(kHeaderBytes)});
  comm.all_gather(own, all.span());

  for (std::size_t r = 0; r < world; ++r) {
    const int from = static_cast<int>(r);
    if (from == ctx.rank) continue;
    const std::span<const std::byte> frame = frame_of(r);
    open(frame.first(kHeaderBytes), {frame.subspan(kHeaderBytes)},
         scales_header(scales.size(), from, ctx), kWhere);
    check_scales(frame, scales.size(), from, kWhere);
    const auto theirs = values_at<float>(frame, at.scales_at, scales.size());
    for (std::size_t t = 0; t < scales.size(); ++t) scales[t] = std::max(scales[t], theirs[t]);
  }
}

Cost scales_cost(std::size_t n_tensors, int world) {
  Cost cost;
  cost.bytes_up = static_cast<std::uint64_t>(world - 1) * ScalesFrame(n_tensors).bytes;
  return cost;
}

}  // namespace pride::exchange
