// Dense exchange: sharded sum in rank order, or the transport's own.
// SPDX-License-Identifier: Apache-2.0
#include "exchange/dense_mean.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "codecs/payload.h"
#include "core/floats_of.h"
#include "exchange/frames.h"
#include "kernels/kernels.h"
#include "pride/bf16.h"
#include "pride/error.h"

namespace pride::exchange {
namespace {

constexpr std::size_t kBlock = 1024;  // bfloat16 are widened so many at a time, within the cache

std::size_t width_of(Dense how) { return how == Dense::kBf16 ? sizeof(BFloat16) : sizeof(float); }

void mark_absent(const Shard& shard, const StepContext& ctx, std::span<std::byte> frame) {
  const DenseFrame at(shard);
  const auto absent = words_at(frame, at.absent_at, at.absent_words);
  std::fill(absent.begin(), absent.end(), 0);
  for (std::size_t k = 0; k < shard.pieces.size(); ++k) {
    if (ctx.is_absent(shard.pieces[k].tensor)) set_bit(absent, k);
  }
}

// This rank's gradients of the bucket, as they are sent.
std::span<const std::byte> values_up(const Wire& wire, Dense how) {
  return how == Dense::kBf16 ? wire.dense_bf16.span() : std::as_bytes(wire.dense_up);
}

// Where the means of the bucket arrive: those in bfloat16 in the second half of the room for
// floats.
std::span<std::byte> values_down(Wire& wire, Dense how) {
  const auto room = wire.dense_mean.span();
  return how == Dense::kBf16 ? room.last(room.size() / 2) : room;
}

// The values of the shard that rank r sent; our own are still where they were sent from.
template <typename T>
const T* row_of(const Bucket& bucket, const StepContext& ctx, const Wire& wire, Dense how, int r) {
  const Shard& mine = bucket.shards[static_cast<std::size_t>(ctx.rank)];
  const auto* up = reinterpret_cast<const T*>(values_up(wire, how).data());
  if (r == ctx.rank) return up + (mine.begin - bucket.begin);
  const auto* in = reinterpret_cast<const T*>(wire.dense_in.span().data());
  return in + static_cast<std::size_t>(r) * mine.size();
}

float value_of(float value) { return value; }
float value_of(BFloat16 value) {
  float wide = 0;
  to_float({&value, 1}, {&wide, 1});
  return wide;
}

[[noreturn]] void refuse_float(const Bucket& bucket, int from, std::size_t index, float value) {
  throw CommError(concat("dense_mean, bucket ", bucket.index, ": the frame from rank ", from,
                         " has ", value, " at coordinate ", index, " and does not report it"));
}

// A rank whose gradients are not finite says so in its frame; then there is no mean.
template <typename T>
void check_senders(const Bucket& bucket, int me, const Run& run, std::span<const T* const> rows,
                   std::size_t bad) {
  const Shard& mine = bucket.shards[static_cast<std::size_t>(me)];
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const float value = value_of(rows[i][bad]);
    const std::size_t index = mine.begin + 64 * run.first_word + bad;
    if (!std::isfinite(value)) refuse_float(bucket, run.ranks[i], index, value);
  }
}

void check_mean(const Bucket& bucket, const ReceivedFrame& f, std::span<const float> mean) {
  const std::size_t bad = kernels::first_non_finite(mean.first(f.shard.size()));
  if (bad != kernels::kAllFinite) refuse_float(bucket, f.from, f.shard.begin + bad, mean[bad]);
}

// out = mean of the rows. Returns where it is not finite.
std::size_t mean_of_rows(std::span<const float* const> rows, int world, std::span<float> out) {
  kernels::mean_rows(rows, world, out);
  return kernels::first_non_finite(out);
}

// The same in bfloat16: the sum is float32, in row order, and what is rounded is the mean.
std::size_t mean_of_rows(std::span<const BFloat16* const> rows, int world,
                         std::span<BFloat16> out) {
  std::array<float, kBlock> sums, terms;
  std::size_t bad = kernels::kAllFinite;
  for (std::size_t at = 0; at < out.size(); at += kBlock) {
    const std::size_t n = std::min(kBlock, out.size() - at);
    const auto sum = std::span(sums).first(n), term = std::span(terms).first(n);
    to_float({rows[0] + at, n}, sum);
    const float* const both[] = {sum.data(), term.data()};
    for (const BFloat16* row : rows.subspan(1)) {
      to_float({row + at, n}, term);
      kernels::sum_rows(both, sum);
    }
    kernels::mean_rows(std::span(both).first(1), world, sum);
    to_bf16(sum, out.subspan(at, n));
    to_float(out.subspan(at, n), term);
    const std::size_t wrong = kernels::first_non_finite(term);
    if (wrong != kernels::kAllFinite) bad = std::min(bad, at + wrong);
  }
  return bad;
}

Poison overflow_at(std::span<const Piece> pieces, std::size_t index) {
  for (const Piece& piece : pieces) {
    if (index < piece.end) return Poison{Poison::kSum, static_cast<std::uint32_t>(piece.tensor)};
  }
  return Poison{Poison::kSum, 0};
}

// Mean of this rank's shard over the ranks that are present. Returns where it overflows.
template <typename T>
std::optional<Poison> reduce_shard(const Bucket& bucket, const StepContext& ctx, Dense how,
                                   Wire& wire) {
  const Shard& mine = bucket.shards[static_cast<std::size_t>(ctx.rank)];
  auto* first = reinterpret_cast<T*>(values_down(wire, how).data());
  const std::span<T> mean(first + (mine.begin - bucket.begin), mine.size());
  std::size_t bad = kernels::kAllFinite;
  for (const Run& run : runs_of(mine, wire, ctx)) {
    const auto out = mean.subspan(64 * run.first_word, 64 * run.n_words);
    if (run.ranks.empty()) {
      std::fill(out.begin(), out.end(), T{});
      continue;
    }
    std::vector<const T*> rows;
    for (const int r : run.ranks) {
      rows.push_back(row_of<T>(bucket, ctx, wire, how, r) + 64 * run.first_word);
    }
    // found here, where the rows are at hand
    const std::size_t wrong = mean_of_rows(rows, ctx.world, out);
    if (wrong == kernels::kAllFinite) continue;
    check_senders<T>(bucket, ctx.rank, run, rows, wrong);
    bad = std::min(bad, 64 * run.first_word + wrong);
  }
  if (bad == kernels::kAllFinite) return std::nullopt;
  return overflow_at(mine.pieces, mine.begin + bad);
}

// The means in bfloat16 -> floats in their place. What is widened from the second half, front to
// back, never covers what is still to be read.
void widen_means(Wire& wire) {
  const auto mean = floats_of(wire.dense_mean);
  const auto narrow = values_down(wire, Dense::kBf16);
  std::array<BFloat16, kBlock> block;
  for (std::size_t at = 0; at < mean.size(); at += kBlock) {
    const std::size_t n = std::min(kBlock, mean.size() - at);
    std::memcpy(block.data(), narrow.data() + sizeof(BFloat16) * at, sizeof(BFloat16) * n);
    to_float(std::span(block).first(n), mean.subspan(at, n));
  }
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

Floats up_floats(const Bucket& bucket, const StepContext& ctx, Dense how, Wire& wire) {
  const auto n = static_cast<std::size_t>(ctx.world);
  const std::size_t width = width_of(how);
  const std::size_t mine = width * bucket.shards[static_cast<std::size_t>(ctx.rank)].size();
  Floats floats{std::vector<std::span<const std::byte>>(n), std::vector<std::span<std::byte>>(n)};
  for (std::size_t j = 0; j < n; ++j) {
    if (static_cast<int>(j) == ctx.rank) continue;
    const Shard& theirs = bucket.shards[j];
    floats.send[j] =
        values_up(wire, how).subspan(width * (theirs.begin - bucket.begin), width * theirs.size());
    floats.recv[j] = wire.dense_in.span().subspan(j * mine, mine);
  }
  return floats;
}

Floats down_floats(const Bucket& bucket, const StepContext& ctx, Dense how, Wire& wire) {
  const auto n = static_cast<std::size_t>(ctx.world);
  const std::size_t width = width_of(how);
  Floats floats{std::vector<std::span<const std::byte>>(n), std::vector<std::span<std::byte>>(n)};
  const auto part = [&](const Shard& s) {
    return values_down(wire, how).subspan(width * (s.begin - bucket.begin), width * s.size());
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
  const std::size_t index = bucket.begin + bad;
  const auto shard = std::ranges::find_if(bucket.shards, [&](const Shard& s) {
    return !s.pieces.empty() && index < s.pieces.back().end;
  });
  return overflow_at(shard == bucket.shards.end() ? std::span<const Piece>{} : shard->pieces,
                     index);
}

// Shards to their owners and back, added in rank order.
void ordered_mean(Communicator& comm, const Bucket& bucket, const StepContext& ctx, Dense how,
                  Wire& wire) {
  const bool narrow = how == Dense::kBf16;
  const Codec up = narrow ? Codec::kDenseBf16 : Codec::kDense;
  const Codec down = narrow ? Codec::kMeanBf16 : Codec::kMean;
  send_up(comm, up, bucket, ctx, up_floats(bucket, ctx, how, wire), wire);
  if (wire.poison) return;
  check_up(up, bucket, ctx, wire, check_absent_bits);
  mark_nobody(bucket.shards[static_cast<std::size_t>(ctx.rank)], ctx, wire);
  const auto bad = narrow ? reduce_shard<BFloat16>(bucket, ctx, how, wire)
                          : reduce_shard<float>(bucket, ctx, how, wire);
  send_down(comm, down, bucket, ctx, down_floats(bucket, ctx, how, wire), bad, wire);
  if (wire.poison) return;
  if (narrow) widen_means(wire);
  check_down(down, bucket, ctx, wire, [&](const ReceivedFrame& f) {
    check_nobody_bits(f, ctx.absent);
    check_mean(bucket, f, floats_of(wire.dense_mean).subspan(f.shard.begin - bucket.begin));
  });
}

// Frames without floats, and between them the sum by the transport.
void native_exchange(Communicator& comm, const Bucket& bucket, const StepContext& ctx, Wire& wire) {
  send_up(comm, Codec::kDense, bucket, ctx, {}, wire);
  if (wire.poison) return;
  check_up(Codec::kDense, bucket, ctx, wire, check_absent_bits);
  mark_nobody(bucket.shards[static_cast<std::size_t>(ctx.rank)], ctx, wire);
  native_mean(comm, bucket, ctx, wire);
  send_down(comm, Codec::kMean, bucket, ctx, {}, std::nullopt, wire);
  if (wire.poison) return;
  check_down(Codec::kMean, bucket, ctx, wire,
             [&](const ReceivedFrame& f) { check_nobody_bits(f, ctx.absent); });
  wire.poison = check_native(bucket, wire);
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
  if (how != Dense::kNative) wire.dense_in.resize(width_of(how) * n * bucket.shards[me].size());
  if (how != Dense::kBf16) return;
  wire.dense_bf16.resize(sizeof(BFloat16) * bucket.size());
  to_bf16(wire.dense_up, values_at<BFloat16>(wire.dense_bf16.span(), 0, bucket.size()));
}

bool is_finite(const Wire& wire, const Bucket& bucket, const Piece& piece, Dense how) {
  const std::size_t begin = piece.begin - bucket.begin;
  if (how != Dense::kBf16) {
    return kernels::first_non_finite(wire.dense_up.subspan(begin, piece.n())) ==
           kernels::kAllFinite;
  }
  const auto rounded = values_at<BFloat16>(wire.dense_bf16.span(), 0, bucket.size());
  std::array<float, kBlock> block;
  for (std::size_t at = 0; at < piece.n(); at += kBlock) {
    const auto wide = std::span(block).first(std::min(kBlock, piece.n() - at));
    to_float(rounded.subspan(begin + at, wide.size()), wide);
    if (kernels::first_non_finite(wide) != kernels::kAllFinite) return false;
  }
  return true;
}

void dense_mean(Communicator& comm, const Bucket& bucket, const StepContext& ctx, Dense how,
                Wire& wire) {
  const Communicator::Scope scope(comm, concat("dense_mean, bucket ", bucket.index));
  if (how == Dense::kNative) {
    native_exchange(comm, bucket, ctx, wire);
  } else {
    ordered_mean(comm, bucket, ctx, how, wire);
  }
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
  cost.exact = cost.bound = how != Dense::kNative;
  const std::size_t width = width_of(how);
  for (const Bucket& bucket : buckets) {
    const std::size_t n = bucket.shards.size();
    const auto me = static_cast<std::size_t>(rank);
    // the floats that this rank sums: its shard, or its part of native_sum's even split
    std::size_t own = DenseFrame(bucket.shards[me], width).float_bytes;
    if (how == Dense::kNative) {
      own = 4 * (bucket.size() / n + (me < bucket.size() % n ? 1 : 0));
      cost.bytes_up += (n - 1) * sizeof(std::uint64_t);  // sizes are compared first
    }
    for (std::size_t j = 0; j < n; ++j) {
      if (j != me) cost.bytes_up += DenseFrame(bucket.shards[j]).bytes;
    }
    cost.bytes_up += width * bucket.size() - own;
    cost.bytes_down += (n - 1) * (DenseFrame(bucket.shards[me]).bytes + own);
  }
  return cost;
}

}  // namespace pride::exchange
