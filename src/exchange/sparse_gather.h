// Sparse gradients, from every rank to every other: frames whose size only the sender knows.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "pride/bucket.h"
#include "pride/communicator.h"
#include "pride/cost.h"
#include "pride/step.h"
#include "pride/wire.h"

namespace pride::exchange {

// Fills wire.up[0] with the entries of `values` that `mask` selects; both are those of the bucket.
// REQUIRES: values.size() == bucket.size(), mask one bit each.
void encode_sparse(const Bucket& bucket, std::span<const std::uint64_t> mask,
                   std::span<const float> values, Wire& wire);

// The entries of all ranks, added in rank order and divided by N -> mean_of_sparse(). Where a rank
// sends nothing for a coordinate it counts as zero. A mean that overflows is poison; so is, on all
// ranks, what a rank reports in wire.poison.
void sparse_gather(Communicator& comm, const Bucket& bucket, const StepContext& ctx, Wire& wire);

// (bucket.size()), padding zero.
std::span<const float> mean_of_sparse(const Wire& wire);

// Upper bound of what a rank sends if it has at most n_entries in all. Grows with N.
Cost sparse_cost(std::span<const Bucket> buckets, std::size_t n_entries);

}  // namespace pride::exchange
