// Exchanges of signs in one round of messages: every rank sends all others its signs of the whole
// bucket, and counts for itself. The parameters are those of the sharded form, bit for bit.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "exchange/sign_vote.h"
#include "pride/bucket.h"
#include "pride/communicator.h"
#include "pride/cost.h"
#include "pride/hosts.h"
#include "pride/step.h"
#include "pride/wire.h"

namespace pride::exchange {

// kSharded: signs to the owner of each shard, who answers all ranks: two rounds.
enum class SignForm { kSharded, kDirect };

// The bucket as one shard, which every rank serves.
Shard whole_of(const Bucket& bucket);

// Sizes this rank's frame of signs, wire.up[rank], and that of its own result, wire.down[rank].
void prepare_direct_vote(const Shard& whole, const StepContext& ctx, Tie tie, Wire& wire);
void prepare_direct_count(const Shard& whole, const StepContext& ctx, Wire& wire);

// wire.up[rank] -> the result in wire.down[rank], which is sent to nobody: counts are bit planes.
void direct_vote(Communicator& comm, const Bucket& bucket, const StepContext& ctx, Tie tie,
                 Wire& wire);
void direct_count(Communicator& comm, const Bucket& bucket, const StepContext& ctx, Wire& wire);

void apply_direct_vote(const Bucket& bucket, const Wire& wire, const StepContext& ctx, Tie tie,
                       View param);
void apply_direct_count(const Bucket& bucket, const Wire& wire, const StepContext& ctx, View param);

// Exact bytes that `rank` sends: (N-1) times the bucket's signs, all of them up.
Cost direct_cost(const Bucket& bucket, int rank, const Hosts& hosts);

// The form with the shorter time on the way, rounds * latency + bytes / rate, on average over the
// ranks; the direct one if they are equal. `round_bytes`: latency * rate, the bytes that a rank
// could send while it waits for a round. `answer_bytes`: of the frame that an owner answers with.
// The same on every rank.
SignForm cheaper_form(const Bucket& bucket, std::uint64_t round_bytes,
                      const std::function<std::size_t(const Shard&)>& answer_bytes);

}  // namespace pride::exchange
