// SPDX-License-Identifier: Apache-2.0
#include "exchange/mean_values.h"

#include <algorithm>
#include <vector>

#include "codecs/payload.h"
#include "exchange/frames.h"
#include "kernels/kernels.h"
#include "pride/error.h"

namespace pride::exchange {
namespace {

// The values as a bucket: a shard a rank, in blocks of 64.
Bucket bucket_of(std::size_t n, int world, int index) {
  Bucket bucket{.index = index, .begin = 0, .end = n, .shards = {}};
  const auto ranks = static_cast<std::size_t>(world);
  for (std::size_t j = 0; j < ranks; ++j) {
    bucket.shards.push_back(
        {.begin = n / 64 * j / ranks * 64, .end = n / 64 * (j + 1) / ranks * 64, .pieces = {}});
  }
  return bucket;
}

void prepare(const Bucket& bucket, ValueFormat format, std::span<const float> values, Wire& wire) {
  const std::size_t n = bucket.shards.size();
  wire.up.resize(n);
  wire.down.resize(n);
  for (std::size_t j = 0; j < n; ++j) {
    const Shard& shard = bucket.shards[j];
    const ValueFrame at(shard.size(), format);
    wire.up[j].resize(at.bytes);
    wire.down[j].resize(at.bytes);
    write_values(values.subspan(shard.begin, shard.size()), at, wire.up[j].span());
  }
}

// Where the frames that this rank made hold something that is not finite: a value beyond the
// largest of the format.
std::optional<Poison> overflow_of(const Bucket& bucket, const ValueSource& source, int rank,
                                  ValueFormat format, const Wire& wire) {
  for (std::size_t j = 0; j < bucket.shards.size(); ++j) {
    const ValueFrame at(bucket.shards[j].size(), format);
    const std::size_t bad = first_beyond_range(wire.up[j].span(), at);
    if (bad < at.n) return Poison{rank, source.tensor_of(bucket.shards[j].begin + bad)};
  }
  return std::nullopt;
}

// The mean of this rank's shard, as its frame down will tell it.
std::optional<Poison> reduce(const Bucket& bucket, const ValueSource& source,
                             const StepContext& ctx, ValueFormat format, Wire& wire) {
  const Shard& mine = bucket.shards[static_cast<std::size_t>(ctx.rank)];
  const ValueFrame at(mine.size(), format);
  std::vector<float> theirs(at.n * static_cast<std::size_t>(ctx.world));
  std::vector<const float*> rows;
  for (int r = 0; r < ctx.world; ++r) {
    const auto row = std::span(theirs).subspan(at.n * static_cast<std::size_t>(r), at.n);
    read_values(frame_from(wire, r, ctx.rank), at, row);
    rows.push_back(row.data());
  }
  const auto mean = std::span(theirs).first(at.n);
  kernels::mean_rows(rows, ctx.world, mean);
  const auto out = wire.down[static_cast<std::size_t>(ctx.rank)].span();
  write_values(mean, at, out);
  std::size_t bad = kernels::first_non_finite(mean);
  if (bad == kernels::kAllFinite) bad = first_beyond_range(out, at);
  if (bad >= at.n) return std::nullopt;
  return Poison{Poison::kSum, source.tensor_of(mine.begin + bad)};
}

}  // namespace

void mean_values(Communicator& comm, const ValueSource& source, const StepContext& ctx,
                 ValueFormat format, std::span<float> values, Wire& wire) {
  const Communicator::Scope scope(comm, concat("mean_values, bucket ", source.bucket));
  const Bucket bucket = bucket_of(values.size(), ctx.world, source.bucket);
  prepare(bucket, format, values, wire);
  wire.poison = overflow_of(bucket, source, ctx.rank, format, wire);
  send_up(comm, Codec::kValues, bucket, ctx, {}, wire);
  if (wire.poison) return;
  const auto check = [&](const ReceivedFrame& f) {
    check_values(f, ValueFrame(f.shard.size(), format));
  };
  check_up(Codec::kValues, bucket, ctx, wire, check);
  const auto bad = reduce(bucket, source, ctx, format, wire);
  send_down(comm, Codec::kMeanValues, bucket, ctx, {}, bad, wire);
  if (wire.poison) return;
  check_down(Codec::kMeanValues, bucket, ctx, wire, check);
  for (std::size_t j = 0; j < bucket.shards.size(); ++j) {
    const Shard& shard = bucket.shards[j];
    read_values(wire.down[j].span(), ValueFrame(shard.size(), format),
                values.subspan(shard.begin, shard.size()));
  }
}

Cost mean_values_cost(std::size_t n, ValueFormat format, int world, int rank) {
  Cost cost;
  if (n == 0) return cost;
  const Bucket bucket = bucket_of(n, world, 0);
  for (int j = 0; j < world; ++j) {
    const ValueFrame at(bucket.shards[static_cast<std::size_t>(j)].size(), format);
    if (j != rank) cost.bytes_up += at.bytes;
    if (j == rank) cost.bytes_down = static_cast<std::uint64_t>(world - 1) * at.bytes;
  }
  return cost;
}

std::uint64_t mean_values_total(std::size_t n, ValueFormat format, int world) {
  if (n == 0) return 0;
  std::uint64_t frames = 0;
  for (const Shard& shard : bucket_of(n, world, 0).shards) {
    frames += ValueFrame(shard.size(), format).bytes;
  }
  return 2 * static_cast<std::uint64_t>(world - 1) * frames;
}

}  // namespace pride::exchange
