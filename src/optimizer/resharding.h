// The state of the shards' servers, when buckets or ranks are others than before.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "base/bucket.h"
#include "base/state_table.h"
#include "pride/communicator.h"
#include "pride/optimizer.h"

namespace pride {

// Flat coordinates [begin, end), whose server was `from` and is `to`.
struct Move {
  std::size_t begin = 0, end = 0;
  int from = 0, to = 0;
};

// Ascending; they cover what both have.
std::vector<Move> moves_between(std::span<const Bucket> from, std::span<const Bucket> to);

// Each rank's buffers hold what it serves in `from`, and afterwards what it serves in `to`, and
// zero elsewhere. Buffers are indexed by flat coordinate. Collective.
void move_to_servers(Communicator& comm, std::span<const Bucket> from, std::span<const Bucket> to,
                     std::span<const Floats> buffers);

// The state that a rank goes on with, from those of all ranks in their order: what is local by the
// policy, what is shared as all have it, and what the rank serves now. Throws InvalidArgument,
// naming tensor and rank, if a tensor is missing, has another size, or should be the same.
StateDict state_of_rank(int rank, std::span<const StateDict> all, const Layout& layout,
                        const StateTable& table, LocalState policy, std::span<const Move> moves);

}  // namespace pride
