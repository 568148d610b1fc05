// Exchange of scaled signs.
// SPDX-License-Identifier: Apache-2.0
#include "exchange/scaled_signs.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "codecs/hash_keys.h"
#include "codecs/payload.h"
#include "core/floats_of.h"
#include "exchange/frames.h"
#include "kernels/scaled_signs.h"
#include "pride/error.h"

namespace pride::exchange {
namespace {

// Bit k = 1 where piece k is absent on all ranks.
void mark_nobody(const StepContext& ctx, const ScaledSignFrame& at, Wire& wire) {
  const auto nobody =
      words_at(wire.down[static_cast<std::size_t>(ctx.rank)].span(), at.absent_at, at.absent_words);
  std::fill(nobody.begin(), nobody.end(), ~std::uint64_t{0});
  for (int r = 0; r < ctx.world; ++r) {
    const auto absent = words_at(frame_from(wire, r, ctx.rank), at.absent_at, at.absent_words);
    for (std::size_t w = 0; w < nobody.size(); ++w) nobody[w] &= absent[w];
  }
}

// Block k of all ranks, in rank order.
std::vector<kernels::ScaledRow> rows_of(const StepContext& ctx, const Wire& wire,
                                        const ScaledSignFrame& at, const ScaleBlock& block,
                                        std::size_t k) {
  std::vector<kernels::ScaledRow> rows;
  rows.reserve(static_cast<std::size_t>(ctx.world));
  for (int r = 0; r < ctx.world; ++r) {
    const SignBlock theirs = block_of(frame_from(wire, r, ctx.rank), at, block, k);
    rows.push_back({theirs.signs.data(), theirs.scale});
  }
  return rows;
}

// pbar = mean of the rows + e_s;  Delta = C(pbar). Returns who found pbar not finite.
std::optional<Poison> answer_shard(const Shard& shard, const StepContext& ctx, Norm norm,
                                   const FlatBuffer& owner_error, Wire& wire) {
  const ScaledSignFrame at(shard);
  mark_nobody(ctx, at, wire);
  const auto out = wire.down[static_cast<std::size_t>(ctx.rank)].span();
  const auto scales = scales_of(out, at);
  const std::uint64_t key = tie_key(ctx.seed, ctx.step);
  const auto blocks = scale_blocks(shard);
  std::optional<Poison> poison;
  for (std::size_t k = 0; k < blocks.size(); ++k) {
    const ScaleBlock& b = blocks[k];
    const auto signs = words_at(out, at.signs_at + 8 * b.first_word, b.n_words());
    if (block_of(out, at, b, k).absent) {
      std::fill(signs.begin(), signs.end(), 0);
      continue;
    }
    const auto pbar = floats_of(wire.owner_accumulated).subspan(b.begin - shard.begin, b.n());
    const auto error = owner_error.span().subspan(b.begin, b.n());
    kernels::mean_of_signs(rows_of(ctx, wire, at, b, k), ctx.world, error, pbar);
    scales[k] = compress(pbar, norm, {key, b.begin / 64}, signs);
    if (!std::isfinite(scales[k]) && !poison) {
      poison = Poison{Poison::kSum, static_cast<std::uint32_t>(shard.pieces[b.piece].tensor)};
    }
  }
  return poison;
}

}  // namespace

float compress(std::span<const float> p, Norm norm, kernels::HashWords zeros,
               std::span<std::uint64_t> signs) {
  kernels::pack_signs(p, zeros, signs);
  const auto n = static_cast<double>(p.size());
  const double scale =
      norm == Norm::kMeanAbs ? kernels::sum_abs(p) / n : std::sqrt(kernels::sum_squares(p) / n);
  return static_cast<float>(scale);
}

void prepare_scaled_signs(const Bucket& bucket, const StepContext& ctx, Wire& wire) {
  const std::size_t n = bucket.shards.size();
  const Shard& mine = bucket.shards[static_cast<std::size_t>(ctx.rank)];
  wire.up.resize(n);
  wire.down.resize(n);
  wire.owner_accumulated.resize(4 * mine.size());
  for (std::size_t j = 0; j < n; ++j) {
    const Shard& shard = bucket.shards[j];
    const ScaledSignFrame at(shard);
    wire.up[j].resize(at.bytes);
    wire.down[j].resize(at.bytes);
    clear_scaled_signs(wire.up[j].span(), at);
    clear_scaled_signs(wire.down[j].span(), at);
    const auto absent = words_at(wire.up[j].span(), at.absent_at, at.absent_words);
    for (std::size_t k = 0; k < shard.pieces.size(); ++k) {
      if (ctx.is_absent(shard.pieces[k].tensor)) set_bit(absent, k);
    }
  }
}

void scaled_sign_mean(Communicator& comm, const Bucket& bucket, const StepContext& ctx, Norm norm,
                      const FlatBuffer& owner_error, Wire& wire) {
  const Communicator::Scope scope(comm, concat("scaled_sign_mean, bucket ", bucket.index));
  const Shard& mine = bucket.shards[static_cast<std::size_t>(ctx.rank)];
  send_up(comm, Codec::kScaledSign, bucket, ctx, {}, wire);
  if (wire.poison) return;
  check_up(Codec::kScaledSign, bucket, ctx, wire, check_scaled_signs);
  const auto overflow = answer_shard(mine, ctx, norm, owner_error, wire);
  send_down(comm, Codec::kScaledSign, bucket, ctx, {}, overflow, wire);
  if (wire.poison) return;
  check_down(Codec::kScaledSign, bucket, ctx, wire, [&](const ReceivedFrame& f) {
    check_nobody_bits(f, ctx.absent);
    check_scaled_signs(f);
  });
}

void keep_owner_error(const Bucket& bucket, const StepContext& ctx, const Wire& wire,
                      FlatBuffer& owner_error) {
  const auto me = static_cast<std::size_t>(ctx.rank);
  const Shard& shard = bucket.shards[me];
  const ScaledSignFrame at(shard);
  const auto blocks = scale_blocks(shard);
  for (std::size_t k = 0; k < blocks.size(); ++k) {
    const ScaleBlock& b = blocks[k];
    const SignBlock delta = block_of(wire.down[me].span(), at, b, k);
    if (delta.absent) continue;
    const auto pbar = floats_of(wire.owner_accumulated).subspan(b.begin - shard.begin, b.n());
    kernels::keep_remainder(pbar, delta.signs, delta.scale,
                            owner_error.span().subspan(b.begin, b.n()));
  }
}

SignBlock block_of(std::span<const std::byte> frame, const ScaledSignFrame& at,
                   const ScaleBlock& block, std::size_t k) {
  return {bit_at(words_at(frame, at.absent_at, at.absent_words), block.piece),
          scales_of(frame, at)[k],
          words_at(frame, at.signs_at + 8 * block.first_word, block.n_words())};
}

Cost scaled_sign_cost(std::span<const Bucket> buckets, int rank) {
  Cost cost;
  for (const Bucket& bucket : buckets) {
    const std::size_t n = bucket.shards.size();
    for (std::size_t j = 0; j < n; ++j) {
      if (static_cast<int>(j) != rank) cost.bytes_up += ScaledSignFrame(bucket.shards[j]).bytes;
    }
    const Shard& mine = bucket.shards[static_cast<std::size_t>(rank)];
    cost.bytes_down += (n - 1) * ScaledSignFrame(mine).bytes;
  }
  return cost;
}

}  // namespace pride::exchange
