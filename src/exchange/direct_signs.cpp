// The direct form of the vote and of the count, and when it is the better one.
// SPDX-License-Identifier: Apache-2.0
#include "exchange/direct_signs.h"

#include "codecs/counts.h"
#include "codecs/payload.h"
#include "exchange/counting.h"
#include "exchange/frames.h"
#include "pride/error.h"

namespace pride::exchange {
namespace {

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

// Frames of this rank alone: all others' are empty.
void prepare(const Shard& whole, const StepContext& ctx, std::size_t result_bytes, Wire& wire) {
  wire.up.resize(index(ctx.world));
  wire.down.resize(index(ctx.world));
  for (int r = 0; r < ctx.world; ++r) {
    wire.up[index(r)].resize(r == ctx.rank ? SignFrame(whole).bytes : 0);
    wire.down[index(r)].resize(r == ctx.rank ? result_bytes : 0);
  }
}

// All ranks' signs, checked; or poison.
void gather(Communicator& comm, const Bucket& bucket, const Shard& whole, const StepContext& ctx,
            Wire& wire) {
  send_to_all(comm, Codec::kAllSigns, bucket, whole, ctx, wire);
  if (wire.poison) return;
  check_from_all(Codec::kAllSigns, bucket, whole, ctx, wire, check_signs);
}

}  // namespace

Shard whole_of(const Bucket& bucket) {
  Shard whole{bucket.begin, bucket.end, {}};
  for (const Shard& shard : bucket.shards) {
    for (const Piece& piece : shard.pieces) {
      if (!whole.pieces.empty() && whole.pieces.back().tensor == piece.tensor) {
        whole.pieces.back().end = piece.end;
      } else {
        whole.pieces.push_back(piece);
      }
    }
  }
  return whole;
}

void prepare_direct_vote(const Shard& whole, const StepContext& ctx, Tie tie, Wire& wire) {
  prepare(whole, ctx, VoteFrame(whole, tie == Tie::kZero).bytes, wire);
}

void prepare_direct_count(const Shard& whole, const StepContext& ctx, Wire& wire) {
  prepare(whole, ctx, CountFrame(whole, ctx.world, CountForm::kPlanes).bytes, wire);
}

void direct_vote(Communicator& comm, const Bucket& bucket, const StepContext& ctx, Tie tie,
                 Wire& wire) {
  const Communicator::Scope scope(comm, concat("sign_vote, bucket ", bucket.index));
  const Shard whole = whole_of(bucket);
  gather(comm, bucket, whole, ctx, wire);
  if (!wire.poison) vote_shard(whole, ctx, tie, wire);
}

void direct_count(Communicator& comm, const Bucket& bucket, const StepContext& ctx, Wire& wire) {
  const Communicator::Scope scope(comm, concat("sign_count, bucket ", bucket.index));
  const Shard whole = whole_of(bucket);
  gather(comm, bucket, whole, ctx, wire);
  if (wire.poison) return;
  count_signs(whole, all_frames(wire, ctx), CountForm::kPlanes, wire.down[index(ctx.rank)].span());
}

void apply_direct_vote(const Bucket& bucket, const Wire& wire, const StepContext& ctx, Tie tie,
                       View param) {
  apply_vote(whole_of(bucket), wire.down[index(ctx.rank)].span(), ctx, tie, param);
}

void apply_direct_count(const Bucket& bucket, const Wire& wire, const StepContext& ctx,
                        View param) {
  apply_count(whole_of(bucket), wire.down[index(ctx.rank)].span(), ctx, CountForm::kPlanes, param);
}

Cost direct_cost(const Bucket& bucket, int rank, const Hosts& hosts) {
  const std::size_t bytes = SignFrame(whole_of(bucket)).bytes;
  Cost cost;
  for (int other = 0; other < static_cast<int>(bucket.shards.size()); ++other) {
    if (other == rank) continue;
    cost.bytes_up += bytes;
    if (hosts.known() && hosts.host_of(other) == hosts.host_of(rank)) cost.bytes_local += bytes;
  }
  return cost;
}

SignForm cheaper_form(const Bucket& bucket, std::uint64_t round_bytes,
                      const std::function<std::size_t(const Shard&)>& answer_bytes) {
  // of all ranks together: every frame goes to all but its owner, or comes from all of them
  const std::uint64_t n = bucket.shards.size();
  if (n == 1) return SignForm::kSharded;
  std::uint64_t frames = 0;
  for (const Shard& shard : bucket.shards) frames += SignFrame(shard).bytes + answer_bytes(shard);
  const std::uint64_t sharded = (n - 1) * frames + 2 * n * round_bytes;
  const std::uint64_t direct = n * (n - 1) * SignFrame(whole_of(bucket)).bytes + n * round_bytes;
  return direct <= sharded ? SignForm::kDirect : SignForm::kSharded;
}

}  // namespace pride::exchange
