// SPDX-License-Identifier: Apache-2.0
#include "exchange/scales.h"

#include <algorithm>
#include <string>

#include "codecs/frame.h"
#include "codecs/payload.h"
#include "codecs/ternary.h"
#include "pride/wire.h"

namespace pride::exchange {
namespace {

FrameHeader scales_header(std::size_t n_tensors, int sender, const StepContext& ctx) {
  FrameHeader h;
  h.codec = Codec::kScales;
  h.rank = static_cast<std::uint16_t>(sender);
  h.step = static_cast<std::uint64_t>(ctx.step);
  h.n_coords = n_tensors;
  h.scalars = ctx.scalars_digest;
  return h;
}

// The frames of all ranks, one after the other, checked.
ByteBuffer gather_scales(Communicator& comm, const StepContext& ctx, std::span<const float> scales,
                         const std::string& where) {
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
         scales_header(scales.size(), from, ctx), where);
    check_scales(frame, scales.size(), from, where);
  }
  return all;
}

std::span<const float> scales_from(const ByteBuffer& all, std::size_t n, std::size_t r) {
  const ScalesFrame at(n);
  return values_at<float>(all.span(), r * at.bytes + at.scales_at, n);
}

}  // namespace

void share_largest(Communicator& comm, const StepContext& ctx, std::span<float> scales) {
  const Communicator::Scope scope(comm, "share_largest");
  const ByteBuffer all = gather_scales(comm, ctx, scales, "share_largest");
  for (std::size_t r = 0; r < static_cast<std::size_t>(ctx.world); ++r) {
    const auto theirs = scales_from(all, scales.size(), r);
    for (std::size_t t = 0; t < scales.size(); ++t) scales[t] = std::max(scales[t], theirs[t]);
  }
}

void share_mean(Communicator& comm, const StepContext& ctx, std::span<float> scales) {
  const Communicator::Scope scope(comm, "share_mean");
  const ByteBuffer all = gather_scales(comm, ctx, scales, "share_mean");
  for (std::size_t t = 0; t < scales.size(); ++t) {
    double sum = 0;
    int n = 0;
    for (std::size_t r = 0; r < static_cast<std::size_t>(ctx.world); ++r) {
      const float theirs = scales_from(all, scales.size(), r)[t];
      sum += theirs;
      n += theirs > 0 ? 1 : 0;
    }
    scales[t] = n > 0 ? static_cast<float>(sum / n) : 0.0f;
  }
}

Cost scales_cost(std::size_t n_tensors, int world) {
  Cost cost;
  cost.bytes_up = static_cast<std::uint64_t>(world - 1) * ScalesFrame(n_tensors).bytes;
  return cost;
}

}  // namespace pride::exchange
