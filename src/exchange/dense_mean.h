// Mean of the gradients over the ranks: what the uncompressed methods exchange.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pride/bucket.h"
#include "pride/communicator.h"
#include "pride/cost.h"
#include "pride/step.h"
#include "pride/wire.h"

namespace pride::exchange {

// kOrdered: all-to-all of shards, summed in rank order, all-gather: the bytes of a ring, the same
// bits everywhere. kNative: the transport's all-reduce, in an order of its own. kBf16: as kOrdered,
// with every gradient, a rank's own too, rounded to bfloat16 before the sum, which is float32, and
// the mean rounded again: half the bytes.
enum class Dense { kOrdered, kNative, kBf16 };

// Sizes the frames, marks the pieces that are absent here, and points wire.dense_up at the
// gradients, which must stay as they are until the exchange is over; kBf16 rounds them here.
void prepare_dense(const Bucket& bucket, const StepContext& ctx, Dense how, ConstView grad,
                   Wire& wire);

// True if what this rank sends of the piece has no NaN or Inf. Finite gradients near the largest
// float32 round to an infinite bfloat16. REQUIRES: prepare_dense().
bool is_finite(const Wire& wire, const Bucket& bucket, const Piece& piece, Dense how);

// Gradients of all ranks -> mean_of(wire), for the whole bucket. Ranks where a tensor is absent
// contribute zero to its mean, which divides by N. A mean that overflows is poison.
void dense_mean(Communicator& comm, const Bucket& bucket, const StepContext& ctx, Dense how,
                Wire& wire);

// The mean gradient of a piece of shard j, and whether any rank had one.
std::span<const float> mean_of(const Wire& wire, const Bucket& bucket, const Piece& piece);
bool nobody_has(const Wire& wire, std::size_t shard, std::size_t piece);

// Exact but for kNative. There what threads send, sizes and floats: no bound, because what a
// library's own all-reduce sends is not observable (of MPI's, the values handed over are counted).
Cost dense_cost(std::span<const Bucket> buckets, int rank, Dense how);

}  // namespace pride::exchange
