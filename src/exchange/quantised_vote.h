// The vote over p-bit levels: the sign of their exact sum (Lion Cub's p-bit all-reduce).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "exchange/sign_vote.h"
#include "pride/bucket.h"
#include "pride/communicator.h"
#include "pride/cost.h"
#include "pride/step.h"
#include "pride/wire.h"

namespace pride::exchange {

// kSharded: levels to the owner of each shard, who adds them and answers with the votes.
// kDirect: an integer all-reduce of the transport, in 8, 16 or 32 bits, whichever holds the largest
// sum; then every rank votes for itself. The results are the same bits.
enum class QuantisedForm { kSharded, kDirect };

struct QuantisedVote {
  int bits = 4;  // of a level, 2 to 8
  Tie tie = Tie::kHash;
  QuantisedForm form = QuantisedForm::kSharded;
};

// Sizes the frames, marks the pieces that are absent here and clears the codes.
void prepare_levels(const Bucket& bucket, const StepContext& ctx, const QuantisedVote& how,
                    Wire& wire);

// Frames of levels in wire.up -> votes of every shard in wire.down, for apply_vote.
// Sharded: sends (N-1)/N of the bucket's coordinates, `bits` each up and 1 down (2 with
// Tie::kZero).
void quantised_vote(Communicator& comm, const Bucket& bucket, const StepContext& ctx,
                    const QuantisedVote& how, Wire& wire);

// Bits of the integers of the direct form: 8, 16 or 32, so that world * largest level fits.
int accumulator_bits(int world, int bits);

// Sharded: exact. Direct: the integers are those of a ring; what the transport really does is not
// observable, so the cost says that it is not exact.
Cost quantised_cost(const Bucket& bucket, int rank, const QuantisedVote& how);

// Sent by all ranks together.
std::uint64_t quantised_total(const Bucket& bucket, const QuantisedVote& how);

// The form that sends fewer bytes, all ranks together. The same on every rank.
QuantisedForm cheaper_form(const Bucket& bucket, QuantisedVote how);

}  // namespace pride::exchange
