// The sharded count of signs: what averaging needs.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "codecs/counts.h"
#include "codecs/payload.h"
#include "exchange/counting.h"
#include "exchange/frames.h"
#include "exchange/sign_frames.h"
#include "exchange/sign_vote.h"
#include "kernels/kernels.h"
#include "pride/error.h"

namespace pride::exchange {
namespace {

// x: the parameters of the range.
void apply_range(const CountRange& range, std::span<const std::byte> frame, const CountFrame& at,
                 const StepContext& ctx, kernels::Step step, std::span<float> x) {
  if (range.present == 0) return kernels::apply_decay(step.decay, x);
  const std::size_t packed_words =
      at.packed_words - std::min(at.packed_words, range.first_word);  // from the range's start on
  const std::size_t n_packed = std::min(x.size(), 64 * packed_words);
  if (n_packed > 0) {
    const auto packed = values_at<std::uint32_t>(frame, at.packed_at, 64 * at.n_groups);
    kernels::apply_packed_counts(packed, at.radix, range.first_word, range.present, ctx.world, step,
                                 x.first(n_packed));
  }
  if (n_packed < x.size()) {
    const auto planes = words_at(frame, at.planes_at, at.n_planes * at.plane_words);
    const std::size_t first = range.first_word + n_packed / 64 - at.packed_words;
    kernels::apply_counts(planes.subspan(first), at.n_planes, at.plane_words, range.present,
                          ctx.world, step, x.subspan(n_packed));
  }
}

}  // namespace

void apply_count(const Shard& shard, std::span<const std::byte> frame, const StepContext& ctx,
                 CountForm form, View param) {
  const CountFrame at(shard, ctx.world, form);
  for (const CountRange& range : count_ranges(frame, shard, at)) {
    const auto group = static_cast<std::size_t>(shard.pieces[range.piece].group);
    const StepScalars& s = ctx.groups[group];
    apply_range(range, frame, at, ctx, {s.decay, s.lr}, param.f32(range.begin, range.end));
  }
}

void prepare_count(const Bucket& bucket, const StepContext& ctx, CountForm form, Wire& wire) {
  prepare_signs(bucket, wire);
  wire.down.resize(bucket.shards.size());
  for (std::size_t j = 0; j < bucket.shards.size(); ++j) {
    wire.down[j].resize(CountFrame(bucket.shards[j], ctx.world, form).bytes);
  }
}

void sign_count(Communicator& comm, const Bucket& bucket, const StepContext& ctx, CountForm form,
                Wire& wire) {
  const Communicator::Scope scope(comm, concat("sign_count, bucket ", bucket.index));
  send_up(comm, Codec::kSign, bucket, ctx, {}, wire);
  if (wire.poison) return;
  check_up(Codec::kSign, bucket, ctx, wire, check_signs);
  const Codec codec = count_codec(ctx.world, form);
  const auto me = static_cast<std::size_t>(ctx.rank);
  count_signs(bucket.shards[me], all_frames(wire, ctx), form, wire.down[me].span());
  send_down(comm, codec, bucket, ctx, {}, std::nullopt, wire);
  if (wire.poison) return;
  check_down(codec, bucket, ctx, wire, [&](const ReceivedFrame& f) {
    check_counts(f, ctx.world, form);
    check_present(f, ctx.world, ctx.absent);
  });
}

void apply_count(const Bucket& bucket, const Wire& wire, const StepContext& ctx, CountForm form,
                 View param) {
  for (std::size_t j = 0; j < bucket.shards.size(); ++j) {
    apply_count(bucket.shards[j], wire.down[j].span(), ctx, form, param);
  }
}

Cost count_cost(std::span<const Bucket> buckets, int rank, CountForm form) {
  const int world = buckets.empty() ? 1 : static_cast<int>(buckets.front().shards.size());
  return sign_cost(buckets, rank,
                   [=](const Shard& shard) { return CountFrame(shard, world, form).bytes; });
}

}  // namespace pride::exchange
