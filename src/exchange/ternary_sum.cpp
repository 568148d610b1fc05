// SPDX-License-Identifier: Apache-2.0
#include "exchange/ternary_sum.h"

#include <algorithm>
#include <vector>

#include "codecs/payload.h"
#include "codecs/ternary.h"
#include "exchange/frames.h"
#include "kernels/kernels.h"
#include "pride/error.h"

namespace pride::exchange {
namespace {

void count_present(const Shard& shard, const StepContext& ctx, const Wire& wire,
                   std::span<std::uint16_t> present) {
  std::ranges::fill(present, std::uint16_t{0});
  for (std::size_t k = 0; k < shard.pieces.size(); ++k) {
    for (int r = 0; r < ctx.world; ++r) {
      const auto absent = words_at(frame_from(wire, r, ctx.rank), kHeaderBytes + 8 * (k / 64), 1);
      if (!bit_at(absent, k % 64)) ++present[k];
    }
  }
}

// t + 1 is the sum of a code's two bits, so the sum over ranks is a count over twice as many rows.
std::vector<const std::uint64_t*> rows_of(const Run& run, const Wire& wire, const StepContext& ctx,
                                          const TernaryFrame& at) {
  std::vector<const std::uint64_t*> rows;
  for (const int r : run.ranks) {
    const auto frame = frame_from(wire, r, ctx.rank);
    for (const std::size_t offset : {at.plus_at, at.not_minus_at}) {
      rows.push_back(words_at(frame, offset + 8 * run.first_word, run.n_words).data());
    }
  }
  return rows;
}

void sum_shard(const Shard& shard, const StepContext& ctx, Wire& wire) {
  const TernaryFrame up(shard);
  const SumFrame down(shard, ctx.world);
  const auto out = wire.down[static_cast<std::size_t>(ctx.rank)].span();
  const auto head = out.subspan(down.present_at, down.planes_at - down.present_at);
  std::ranges::fill(head, std::byte{0});
  count_present(shard, ctx, wire,
                values_at<std::uint16_t>(out, down.present_at, shard.pieces.size()));
  const auto planes = words_at(out, down.planes_at, down.n_planes * down.plane_words);
  std::vector<std::uint64_t> part;
  for (const Run& run : runs_of(shard, wire, ctx)) {
    const auto rows = rows_of(run, wire, ctx, up);
    if (run.n_words == down.plane_words) {
      kernels::count(rows, run.n_words, down.n_planes, planes);
      continue;
    }
    // a part of the shard: its planes are not adjacent in the frame
    part.resize(down.n_planes * run.n_words);
    kernels::count(rows, run.n_words, down.n_planes, part);
    for (std::size_t p = 0; p < down.n_planes; ++p) {
      std::ranges::copy(std::span(part).subspan(p * run.n_words, run.n_words),
                        planes.subspan(p * down.plane_words + run.first_word).begin());
    }
  }
}

}  // namespace

void prepare_ternary(const Bucket& bucket, const StepContext& ctx, Wire& wire) {
  const std::size_t n = bucket.shards.size();
  wire.up.resize(n);
  wire.down.resize(n);
  for (std::size_t j = 0; j < n; ++j) {
    const Shard& shard = bucket.shards[j];
    const TernaryFrame at(shard);
    wire.up[j].resize(at.bytes);
    wire.down[j].resize(SumFrame(shard, ctx.world).bytes);
    std::ranges::fill(wire.up[j].span().subspan(kHeaderBytes), std::byte{0});
    const auto absent = words_at(wire.up[j].span(), at.absent_at, at.absent_words);
    for (std::size_t k = 0; k < shard.pieces.size(); ++k) {
      if (ctx.is_absent(shard.pieces[k].tensor)) set_bit(absent, k);
    }
  }
}

void ternary_sum(Communicator& comm, const Bucket& bucket, const StepContext& ctx, Wire& wire) {
  const Communicator::Scope scope(comm, concat("ternary_sum, bucket ", bucket.index));
  send_up(comm, Codec::kTernary, bucket, ctx, {}, wire);
  if (wire.poison) return;
  check_up(Codec::kTernary, bucket, ctx, wire,
           [](const ReceivedFrame& f) { check_ternary(f.frame, f.shard, f.from, f.where); });
  sum_shard(bucket.shards[static_cast<std::size_t>(ctx.rank)], ctx, wire);
  send_down(comm, Codec::kSum, bucket, ctx, {}, std::nullopt, wire);
  if (wire.poison) return;
  check_down(Codec::kSum, bucket, ctx, wire, [&](const ReceivedFrame& f) {
    check_sums(f.frame, f.shard, ctx.world, f.from, f.where);
    check_present(f, ctx.world, ctx.absent);
  });
}

Cost ternary_cost(std::span<const Bucket> buckets, int rank) {
  Cost cost;
  for (const Bucket& bucket : buckets) {
    const std::size_t n = bucket.shards.size();
    for (std::size_t j = 0; j < n; ++j) {
      if (static_cast<int>(j) != rank) cost.bytes_up += TernaryFrame(bucket.shards[j]).bytes;
    }
    const Shard& mine = bucket.shards[static_cast<std::size_t>(rank)];
    cost.bytes_down += (n - 1) * SumFrame(mine, static_cast<int>(n)).bytes;
  }
  return cost;
}

}  // namespace pride::exchange
