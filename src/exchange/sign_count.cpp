// The sharded count of signs: what averaging needs.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "codecs/payload.h"
#include "exchange/frames.h"
#include "exchange/sign_frames.h"
#include "exchange/sign_vote.h"
#include "kernels/kernels.h"
#include "pride/error.h"

namespace pride::exchange {
namespace {

// Sixteen-bit numbers, four to a word.
void put_u16(std::span<std::uint64_t> words, std::size_t i, std::size_t value) {
  words[i / 4] |= static_cast<std::uint64_t>(value) << (16 * (i % 4));
}
int get_u16(std::span<const std::uint64_t> words, std::size_t i) {
  return static_cast<int>((words[i / 4] >> (16 * (i % 4))) & 0xFFFF);
}

// How many ranks are present: per piece, and per block of the sparse pieces.
void count_present(const Shard& shard, const std::vector<Run>& runs, const Wire& wire,
                   const StepContext& ctx, const CountFrame& down, std::span<std::byte> out) {
  const auto by_piece =
      words_at(out, down.present_at, (down.block_present_at - down.present_at) / 8);
  const auto by_block =
      words_at(out, down.block_present_at, (down.planes_at - down.block_present_at) / 8);
  std::fill(by_piece.begin(), by_piece.end(), 0);
  std::fill(by_block.begin(), by_block.end(), 0);

  for (std::size_t k = 0; k < shard.pieces.size(); ++k) {
    std::size_t present = 0;
    for (int r = 0; r < ctx.world; ++r) {
      const auto absent = words_at(frame_from(wire, r, ctx.rank), kHeaderBytes + 8 * (k / 64), 1);
      if (!bit_at(absent, k % 64)) ++present;
    }
    put_u16(by_piece, k, present);
  }
  // runs cover the shard's words in order; blocks are the words of sparse pieces
  std::size_t word = 0, block = 0, run = 0;
  for (const Piece& piece : shard.pieces) {
    for (std::size_t w = 0; piece.sparse && w < piece.n_words(); ++w) {
      while (word + w >= runs[run].first_word + runs[run].n_words) ++run;
      put_u16(by_block, block++, runs[run].ranks.size());
    }
    word += piece.n_words();
  }
}

void count_run(const Run& run, const Wire& wire, const StepContext& ctx, const SignFrame& up,
               const CountFrame& down, std::span<std::uint64_t> planes) {
  const auto rows = rows_of(run, wire, ctx, up);
  if (run.n_words == down.plane_words) {
    kernels::count(rows, run.n_words, down.n_planes, planes);
    return;
  }
  // a part of the shard: its planes are not adjacent in the frame
  std::vector<std::uint64_t> part(down.n_planes * run.n_words);
  kernels::count(rows, run.n_words, down.n_planes, part);
  for (std::size_t p = 0; p < down.n_planes; ++p) {
    std::copy_n(
        part.begin() + static_cast<std::ptrdiff_t>(p * run.n_words), run.n_words,
        planes.begin() + static_cast<std::ptrdiff_t>(p * down.plane_words + run.first_word));
  }
}

void count_shard(const Shard& shard, const StepContext& ctx, Wire& wire) {
  const SignFrame up(shard);
  const CountFrame down(shard, ctx.world);
  const auto out = wire.down[static_cast<std::size_t>(ctx.rank)].span();
  const auto runs = runs_of(shard, wire, ctx, true);
  count_present(shard, runs, wire, ctx, down, out);
  const auto planes = words_at(out, down.planes_at, down.n_planes * down.plane_words);
  for (const Run& run : runs) count_run(run, wire, ctx, up, down, planes);
}

void apply_part(std::span<const std::uint64_t> planes, const CountFrame& at, int present,
                const StepContext& ctx, kernels::Step step, std::span<float> x) {
  if (present == 0) {
    kernels::apply_decay(step.decay, x);
  } else {
    kernels::apply_counts(planes, at.n_planes, at.plane_words, present, ctx.world, step, x);
  }
}

void apply_shard(const Shard& shard, std::span<const std::byte> frame, const StepContext& ctx,
                 View param) {
  const CountFrame at(shard, ctx.world);
  const auto by_piece = words_at(frame, at.present_at, (at.block_present_at - at.present_at) / 8);
  const auto by_block =
      words_at(frame, at.block_present_at, (at.planes_at - at.block_present_at) / 8);
  const auto planes = words_at(frame, at.planes_at, at.n_planes * at.plane_words);
  std::size_t word = 0, block = 0;
  for (std::size_t k = 0; k < shard.pieces.size(); ++k) {
    const Piece& piece = shard.pieces[k];
    const StepScalars& s = ctx.groups[static_cast<std::size_t>(piece.group)];
    const kernels::Step step{s.decay, s.lr};
    const auto x = param.f32(piece.begin, piece.end);
    if (!piece.sparse) {
      apply_part(planes.subspan(word), at, get_u16(by_piece, k), ctx, step, x);
    }
    for (std::size_t first = 0; piece.sparse && first < piece.n_words();) {
      const int present = get_u16(by_block, block + first);
      std::size_t last = first + 1;
      while (last < piece.n_words() && get_u16(by_block, block + last) == present) ++last;
      const auto part = x.subspan(64 * first, std::min(x.size(), 64 * last) - 64 * first);
      apply_part(planes.subspan(word + first), at, present, ctx, step, part);
      first = last;
    }
    word += piece.n_words();
    if (piece.sparse) block += piece.n_words();
  }
}

}  // namespace

void prepare_count(const Bucket& bucket, const StepContext& ctx, Wire& wire) {
  prepare_signs(bucket, ctx, wire);
  wire.down.resize(bucket.shards.size());
  for (std::size_t j = 0; j < bucket.shards.size(); ++j) {
    wire.down[j].resize(CountFrame(bucket.shards[j], ctx.world).bytes);
  }
}

void sign_count(Communicator& comm, const Bucket& bucket, const StepContext& ctx, Wire& wire) {
  const Communicator::Scope scope(comm, concat("sign_count, bucket ", bucket.index));
  send_up(comm, Codec::kSign, bucket, ctx, {}, wire);
  if (wire.poison) return;
  count_shard(bucket.shards[static_cast<std::size_t>(ctx.rank)], ctx, wire);
  send_down(comm, Codec::kCount, bucket, ctx, {}, std::nullopt, wire);
}

void apply_count(const Bucket& bucket, const Wire& wire, const StepContext& ctx, View param) {
  for (std::size_t j = 0; j < bucket.shards.size(); ++j) {
    apply_shard(bucket.shards[j], wire.down[j].span(), ctx, param);
  }
}

Cost count_cost(std::span<const Bucket> buckets, int rank) {
  const int world = buckets.empty() ? 1 : static_cast<int>(buckets.front().shards.size());
  return sign_cost(buckets, rank,
                   [world](const Shard& shard) { return CountFrame(shard, world).bytes; });
}

}  // namespace pride::exchange
