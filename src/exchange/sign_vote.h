// Sharded exchanges of signs. The rank that owns a shard counts the ranks' signs and answers with
// the majority (Distributed Lion MaVo) or the counts (Distributed Lion Avg).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codecs/counts.h"
#include "pride/bucket.h"
#include "pride/communicator.h"
#include "pride/cost.h"
#include "pride/step.h"
#include "pride/wire.h"

namespace pride::exchange {

// What a tied vote becomes: a hash bit that all ranks share, or zero (a ternary result).
enum class Tie { kHash, kZero };

// Sizes the frames of a bucket of signs: up, in, and down for a vote or for counts.
void prepare_vote(const Bucket& bucket, Tie tie, Wire& wire);
void prepare_count(const Bucket& bucket, const StepContext& ctx, CountForm form, Wire& wire);

// Frames of signs in wire.up -> votes of every shard in wire.down.
// Sends (N-1)/N of the bucket's bits up and the same down (twice that down with Tie::kZero).
void sign_vote(Communicator& comm, const Bucket& bucket, const StepContext& ctx, Tie tie,
               Wire& wire);

// Frames of signs in wire.up -> counts of + of every shard in wire.down.
// Sends (N-1)/N of the bucket's bits up and count_bits() times that down.
void sign_count(Communicator& comm, const Bucket& bucket, const StepContext& ctx, CountForm form,
                Wire& wire);

// x = x*decay - lr*vote for every coordinate of the bucket; only decay where nobody was present.
void apply_vote(const Bucket& bucket, const Wire& wire, const StepContext& ctx, Tie tie,
                View param);

// x = x*decay - lr*S/N, S = 2*count - present.
void apply_count(const Bucket& bucket, const Wire& wire, const StepContext& ctx, CountForm form,
                 View param);

// The same of one shard: the vote of all ranks' frames about it into wire.down[ctx.rank], header
// left out; a frame of votes or counts applied.
void vote_shard(const Shard& shard, const StepContext& ctx, Tie tie, Wire& wire);
void apply_vote(const Shard& shard, std::span<const std::byte> frame, const StepContext& ctx,
                Tie tie, View param);
void apply_count(const Shard& shard, std::span<const std::byte> frame, const StepContext& ctx,
                 CountForm form, View param);

// Exact bytes that `rank` sends in each phase over these buckets.
Cost vote_cost(std::span<const Bucket> buckets, int rank, Tie tie);
Cost count_cost(std::span<const Bucket> buckets, int rank, CountForm form);

// Bytes of all frames of a vote, each counted once: all but one rank send each of them.
std::uint64_t vote_frames(const Bucket& bucket, Tie tie);

}  // namespace pride::exchange
