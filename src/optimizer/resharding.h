// Moves server state when buckets or ranks change.
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

// Ascending; they cover the coordinates that both have.
std::vector<Move> moves_between(std::span<const Bucket> from, std::span<const Bucket> to);

// Before, each rank's buffers hold the state of its shards in `from`. Afterwards they hold that of
// its shards in `to`, and zero elsewhere. Buffers are indexed by flat coordinate. Collective.
void move_to_servers(Communicator& comm, std::span<const Bucket> from, std::span<const Bucket> to,
                     std::span<const Floats> buffers);

// A rank's new state from the states of all ranks, in rank order. Local state follows the policy,
// shared state is copied, server state is that of the rank's new shards. Throws InvalidArgument,
// naming tensor and rank, if a tensor is missing, has another size, or wrongly differs.
StateDict state_of_rank(int rank, std::span<const StateDict> all, const Layout& layout,
                        const StateTable& table, LocalState policy, std::span<const Move> moves);

}  // namespace pride
