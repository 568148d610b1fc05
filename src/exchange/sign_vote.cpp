// The sharded majority vote.
// SPDX-License-Identifier: Apache-2.0
#include "exchange/sign_vote.h"

#include "codecs/hash_keys.h"
#include "codecs/payload.h"
#include "exchange/frames.h"
#include "exchange/sign_frames.h"
#include "kernels/kernels.h"
#include "pride/error.h"

namespace pride::exchange {
namespace {

// x: the parameters of one piece that somebody has.
void apply_piece(std::span<const std::uint64_t> positive, std::span<const std::uint64_t> nonzero,
                 kernels::Step step, std::span<float> x) {
  if (nonzero.empty()) {
    kernels::apply_signs(positive, step, x);
  } else {
    kernels::apply_ternary(positive, nonzero, step, x);
  }
}

}  // namespace

// Everything a vote says about one shard, as words of its frame.
void vote_shard(const Shard& shard, const StepContext& ctx, Tie tie, Wire& wire) {
  const SignFrame up(shard);
  const VoteFrame down(shard, tie == Tie::kZero);
  const auto out = wire.down[static_cast<std::size_t>(ctx.rank)].span();
  const auto nobody = words_at(out, down.nobody_at, down.nobody_words);
  combine_absent(wire, ctx, up, nobody);

  const std::uint64_t key = tie_key(ctx.seed, ctx.step);
  const Frames frames = all_frames(wire, ctx);
  for (const Run& run : runs_of(shard, frames)) {
    const auto rows = rows_of(run, frames, up);
    const auto positive = words_at(out, down.positive_at + 8 * run.first_word, run.n_words);
    if (tie == Tie::kZero) {
      const auto nonzero = words_at(out, down.nonzero_at + 8 * run.first_word, run.n_words);
      kernels::vote_ternary(rows, positive, nonzero);
    } else {
      kernels::vote(rows, {key, shard.begin / 64 + run.first_word}, positive);
    }
  }
}

void apply_vote(const Shard& shard, std::span<const std::byte> frame, const StepContext& ctx,
                Tie tie, View param) {
  const VoteFrame at(shard, tie == Tie::kZero);
  const auto nobody = words_at(frame, at.nobody_at, at.nobody_words);
  std::size_t word = 0;
  for (std::size_t k = 0; k < shard.pieces.size(); ++k) {
    const Piece& piece = shard.pieces[k];
    const StepScalars& s = ctx.groups[static_cast<std::size_t>(piece.group)];
    const kernels::Step step{s.decay, s.lr};
    const auto x = param.f32(piece.begin, piece.end);
    const auto positive = words_at(frame, at.positive_at + 8 * word, piece.n_words());
    const auto nonzero = tie == Tie::kZero
                             ? words_at(frame, at.nonzero_at + 8 * word, piece.n_words())
                             : std::span<const std::uint64_t>{};
    if (bit_at(nobody, k)) {
      kernels::apply_decay(step.decay, x);
    } else {
      apply_piece(positive, nonzero, step, x);
    }
    word += piece.n_words();
  }
}

void prepare_vote(const Bucket& bucket, Tie tie, Wire& wire) {
  prepare_signs(bucket, wire);
  wire.down.resize(bucket.shards.size());
  for (std::size_t j = 0; j < bucket.shards.size(); ++j) {
    wire.down[j].resize(VoteFrame(bucket.shards[j], tie == Tie::kZero).bytes);
  }
}

void sign_vote(Communicator& comm, const Bucket& bucket, const StepContext& ctx, Tie tie,
               Wire& wire) {
  const Communicator::Scope scope(comm, concat("sign_vote, bucket ", bucket.index));
  send_up(comm, Codec::kSign, bucket, ctx, {}, wire);
  if (wire.poison) return;
  check_up(Codec::kSign, bucket, ctx, wire, check_signs);
  vote_shard(bucket.shards[static_cast<std::size_t>(ctx.rank)], ctx, tie, wire);
  send_down(comm, Codec::kVote, bucket, ctx, {}, std::nullopt, wire);
  if (wire.poison) return;
  check_down(Codec::kVote, bucket, ctx, wire,
             [&](const ReceivedFrame& f) { check_vote(f, tie == Tie::kZero, ctx.absent); });
}

void apply_vote(const Bucket& bucket, const Wire& wire, const StepContext& ctx, Tie tie,
                View param) {
  for (std::size_t j = 0; j < bucket.shards.size(); ++j) {
    apply_vote(bucket.shards[j], wire.down[j].span(), ctx, tie, param);
  }
}

Cost vote_cost(std::span<const Bucket> buckets, int rank, Tie tie) {
  return sign_cost(buckets, rank,
                   [tie](const Shard& shard) { return VoteFrame(shard, tie == Tie::kZero).bytes; });
}

std::uint64_t vote_frames(const Bucket& bucket, Tie tie) {
  std::uint64_t bytes = 0;
  for (const Shard& shard : bucket.shards) {
    bytes += SignFrame(shard).bytes + VoteFrame(shard, tie == Tie::kZero).bytes;
  }
  return bytes;
}

}  // namespace pride::exchange
