// Dense exchange: sharded sum in rank order, or the transport's own.
// SPDX-License-Identifier: Apache-2.0
#include "exchange/dense_mean.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "codecs/payload.h"
#include "core/floats_of.h"
#include "exchange/frames.h"
#include "kernels/kernels.h"
#include "pride/error.h"

namespace pride::exchange {
namespace {

void mark_absent(const Shard& shard, const StepContext& ctx, std::span<std::byte> frame) {
  const DenseFrame at(shard);
  const auto absent = words_at(frame, at.absent_at, at.absent_words);
  std::fill(absent.begin(), absent.end(), 0);
  for (std::size_t k = 0; k < shard.pieces.size(); ++k) {
    if (ctx.is_absent(shard.pieces[k].tensor)) set_bit(absent, k);
  }
}

// The floats of the shard that rank r sent; our own are still where backward left them.
std::span<const float> row_of(const Bucket& bucket, const StepContext& ctx, const Wire& wire,
                              int r) {
  const Shard& mine = bucket.shards[static_cast<std::size_t>(ctx.rank)];
  if (r == ctx.rank) return wire.dense_up.subspan(mine.begin - bucket.begin, mine.size());
  return floats_of(wire.dense_in).subspan(static_cast<std::size_t>(r) * mine.size(), mine.size());
}

[[noreturn]] void refuse_float(const Bucket& bucket, int from, std::size_t index, float value) {
  throw CommError(concat("dense_mean, bucket ", bucket.index, ": the frame from rank ", from,
                         " has ", value, " at coordinate ", index, " and does not report it"));
}

// A rank whose gradients are not finite says so in its frame; then there is no mean.
void check_senders(const Bucket& bucket, int me, const Run& run, std::span<const float* const> rows,
                   std::size_t bad) {
  const Shard& mine = bucket.shards[static_cast<std::size_t>(me)];
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const float value = rows[i][bad];
    const std::size_t index = mine.begin + 64 * run.first_word + bad;
    if (!std::isfinite(value)) refuse_float(bucket, run.ranks[i], index, value);
  }
}

void check_mean(const Bucket& bucket, const ReceivedFrame& f, std::span<const float> mean) {
  const std::size_t bad = kernels::first_non_finite(mean.first(f.shard.size()));
  if (bad != kernels::kAllFinite) refuse_float(bucket, f.from, f.shard.begin + bad, mean[bad]);
}

// Mean of this rank's shard over the ranks that are present. Returns where it overflows.
std::optional<Poison> reduce_shard(const Bucket& bucket, const StepContext& ctx, Wire& wire) {
  const Shard& mine = bucket.shards[static_cast<std::size_t>(ctx.rank)];
  const auto mean = floats_of(wire.dense_mean).subspan(mine.begin - bucket.begin, mine.size());
  std::size_t bad = kernels::kAllFinite;
  for (const Run& run : runs_of(mine, wire, ctx, false)) {
    const auto out = mean.subspan(64 * run.first_word, 64 * run.n_words);
    if (run.ranks.empty()) {
      std::fill(out.begin(), out.end(), 0.0f);
      continue;
    }
    std::vector<const float*> rows;
    for (const int r : run.ranks) {
      rows.push_back(row_of(bucket, ctx, wire, r).subspan(64 * run.first_word).data());
    }
    kernels::mean_rows(rows, ctx.world, out);
    // found here, where the rows are at hand
    const std::size_t wrong = kernels::first_non_finite(out);
    if (wrong == kernels::kAllFinite) continue;
    check_senders(bucket, ctx.rank, run, rows, wrong);
    bad = std::min(bad, 64 * run.first_word + wrong);
  }
  if (bad == kernels::kAllFinite) return std::nullopt;
  for (const Piece& piece : mine.pieces) {
    if (mine.begin + bad < piece.end) {
      return Poison{Poison::kSum, static_cast<std::uint32_t>(piece.tensor)};
    }
  }
  return Poison{Poison::kSum, 0};
}

// Nobody has piece k: absent on all ranks.
void mark_nobody(const Shard& shard, const StepContext& ctx, Wire& wire) {
  const DenseFrame at(shard);
  const auto nobody =
      words_at(wire.down[static_cast<std::size_t>(ctx.rank)].span(), at.absent_at, at.absent_words);
  std::fill(nobody.begin(), nobody.end(), ~std::uint64_t{0});
  for (int r = 0; r < ctx.world; ++r) {
    const auto absent = words_at(frame_from(wire, r, ctx.rank), at.absent_at, at.absent_words);
    for (std::size_t w = 0; w < nobody.size(); ++w) nobody[w] &= absent[w];
  }
}

Floats up_floats(const Bucket& bucket, const StepContext& ctx, Wire& wire) {
  const auto n = static_cast<std::size_t>(ctx.world);
  const Shard& mine = bucket.shards[static_cast<std::size_t>(ctx.rank)];
  Floats floats{std::vector<std::span<const std::byte>>(n), std::vector<std::span<std::byte>>(n)};
  for (std::size_t j = 0; j < n; ++j) {
    if (static_cast<int>(j) == ctx.rank) continue;
    const Shard& theirs = bucket.shards[j];
    floats.send[j] =
        std::as_bytes(wire.dense_up.subspan(theirs.begin - bucket.begin, theirs.size()));
    floats.recv[j] = wire.dense_in.span().subspan(j * 4 * mine.size(), 4 * mine.size());
  }
  return floats;
}

Floats down_floats(const Bucket& bucket, const StepContext& ctx, Wire& wire) {
  const auto n = static_cast<std::size_t>(ctx.world);
  Floats floats{std::vector<std::span<const std::byte>>(n), std::vector<std::span<std::byte>>(n)};
  const auto part = [&](const Shard& s) {
    return wire.dense_mean.span().subspan(4 * (s.begin - bucket.begin), 4 * s.size());
  };
  for (std::size_t j = 0; j < n; ++j) {
    if (static_cast<int>(j) == ctx.rank) continue;
    floats.send[j] = part(bucket.shards[static_cast<std::size_t>(ctx.rank)]);
    floats.recv[j] = part(bucket.shards[j]);
  }
  return floats;
}

// Sum of everything by the transport, then the mean; absent tensors count as zero.
void native_mean(Communicator& comm, const Bucket& bucket, const StepContext& ctx, Wire& wire) {
  const auto mean = floats_of(wire.dense_mean);
  std::copy(wire.dense_up.begin(), wire.dense_up.end(), mean.begin());
  for (const Shard& shard : bucket.shards) {
    for (const Piece& p : shard.pieces) {
      if (!ctx.is_absent(p.tensor)) continue;
      const auto absent = mean.subspan(p.begin - bucket.begin, p.n());
      std::fill(absent.begin(), absent.end(), 0.0f);
    }
  }
  comm.native_sum(mean);
  const float* rows[] = {mean.data()};
  kernels::mean_rows(rows, ctx.world, mean);
}

// The sum that the library made may have overflowed: the same on all ranks.
std::optional<Poison> check_native(const Bucket& bucket, const Wire& wire) {
  const std::size_t bad = kernels::first_non_finite(floats_of(wire.dense_mean));
  if (bad == kernels::kAllFinite) return std::nullopt;
  for (const Shard& shard : bucket.shards) {
    for (const Piece& p : shard.pieces) {
      if (bucket.begin + bad < p.end)
        return Poison{Poison::kSum, static_cast<std::uint32_t>(p.tensor)};
    }
  }
  return Poison{Poison::kSum, 0};
}

}  // namespace

void prepare_dense(const Bucket& bucket, const StepContext& ctx, Dense how, ConstView grad,
                   Wire& wire) {
  const std::size_t n = bucket.shards.size();
  const auto me = static_cast<std::size_t>(ctx.rank);
  wire.up.resize(n);
  wire.down.resize(n);
  for (std::size_t j = 0; j < n; ++j) {
    const std::size_t bytes = DenseFrame(bucket.shards[j]).bytes;
    wire.up[j].resize(bytes);
    wire.down[j].resize(bytes);
    mark_absent(bucket.shards[j], ctx, wire.up[j].span());
  }
  wire.dense_up = grad.f32(bucket.begin, bucket.end);
  wire.dense_mean.resize(4 * bucket.size());
  if (how == Dense::kOrdered) wire.dense_in.resize(4 * n * bucket.shards[me].size());
}

void dense_mean(Communicator& comm, const Bucket& bucket, const StepContext& ctx, Dense how,
                Wire& wire) {
  const Communicator::Scope scope(comm, concat("dense_mean, bucket ", bucket.index));
  const bool ordered = how == Dense::kOrdered;
  send_up(comm, Codec::kDense, bucket, ctx, ordered ? up_floats(bucket, ctx, wire) : Floats{},
          wire);
  if (wire.poison) return;
  check_up(Codec::kDense, bucket, ctx, wire, check_absent_bits);
  mark_nobody(bucket.shards[static_cast<std::size_t>(ctx.rank)], ctx, wire);
  const auto check_bits = [&](const ReceivedFrame& f) { check_nobody_bits(f, ctx.absent); };
  if (ordered) {
    const auto bad = reduce_shard(bucket, ctx, wire);
    send_down(comm, Codec::kMean, bucket, ctx, down_floats(bucket, ctx, wire), bad, wire);
    if (wire.poison) return;
    check_down(Codec::kMean, bucket, ctx, wire, [&](const ReceivedFrame& f) {
      check_bits(f);
      check_mean(bucket, f, floats_of(wire.dense_mean).subspan(f.shard.begin - bucket.begin));
    });
    return;
  }
  native_mean(comm, bucket, ctx, wire);
  send_down(comm, Codec::kMean, bucket, ctx, {}, std::nullopt, wire);
  if (wire.poison) return;
  check_down(Codec::kMean, bucket, ctx, wire, check_bits);
  wire.poison = check_native(bucket, wire);
}

std::span<const float> mean_of(const Wire& wire, const Bucket& bucket, const Piece& piece) {
  return floats_of(wire.dense_mean).subspan(piece.begin - bucket.begin, piece.n());
}

bool nobody_has(const Wire& wire, std::size_t shard, std::size_t piece) {
  const auto frame = wire.down[shard].span();
  return bit_at(words_at(std::span<const std::byte>(frame), kHeaderBytes + 8 * (piece / 64), 1),
                piece % 64);
}

Cost dense_cost(std::span<const Bucket> buckets, int rank, Dense how) {
  Cost cost;
  cost.exact = cost.bound = how == Dense::kOrdered;
  for (const Bucket& bucket : buckets) {
    const std::size_t n = bucket.shards.size();
    const auto me = static_cast<std::size_t>(rank);
    // the floats that this rank sums: its shard, or its part of native_sum's even split
    std::size_t own = DenseFrame(bucket.shards[me]).float_bytes;
    if (how == Dense::kNative) {
      own = 4 * (bucket.size() / n + (me < bucket.size() % n ? 1 : 0));
      cost.bytes_up += (n - 1) * sizeof(std::uint64_t);  // sizes are compared first
    }
    for (std::size_t j = 0; j < n; ++j) {
      if (j != me) cost.bytes_up += DenseFrame(bucket.shards[j]).bytes;
    }
    cost.bytes_up += 4 * bucket.size() - own;
    cost.bytes_down += (n - 1) * (DenseFrame(bucket.shards[me]).bytes + own);
  }
  return cost;
}

}  // namespace pride::exchange
