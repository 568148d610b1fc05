// Sharded sum of ternary codes. The rank that owns a shard adds up the ranks' codes and answers
// with the sums, in the bits that they need. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pride/bucket.h"
#include "pride/communicator.h"
#include "pride/cost.h"
#include "pride/step.h"
#include "pride/wire.h"

namespace pride::exchange {

// Twice the ranks must be rows of kernels::count.
inline constexpr int kMaxTernaryWorld = 32767;

// Sizes the frames and marks the pieces that are absent here.
void prepare_ternary(const Bucket& bucket, const StepContext& ctx, Wire& wire);

// Codes in wire.up -> sums over the present ranks in wire.down.
// Sends (N-1)/N of the bucket's coordinates, 2 bits each up and bit_width(2N) down.
void ternary_sum(Communicator& comm, const Bucket& bucket, const StepContext& ctx, Wire& wire);

Cost ternary_cost(std::span<const Bucket> buckets, int rank);

}  // namespace pride::exchange
