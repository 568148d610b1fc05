// Routes: move the frames of a part, independently of the method; and their exact costs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "pride/communicator.h"
#include "pride/cost.h"
#include "pride/nodes.h"
#include "routes/protocol.h"

namespace pride {

// Receive buffers, shared by parts: needed only while a part is exchanged.
struct Scratch {
  std::vector<ByteBuffer> in, in_body;  // frames of the other ranks
  std::vector<ByteBuffer> partial_up, partial_in;
  std::size_t capacity_bytes() const noexcept;
};

// Sizes the frames of the part, and sets the unused bits of this rank.
void size_frames(const Part& part, const StepContext& ctx, Wire& wire);

// Sets the bits of wire.unused in all frames that have them. wire.unused must not change for these
// tensors until the exchange is over.
void mark_unused(const Part& part, Wire& wire);

// wire.up -> wire.down, through the server of each shard. Afterwards wire.non_finite is the same on
// all ranks; if it is set, wire.down is unspecified. Collective. Throws CommError.
void exchange(Communicator& comm, const Server& server, const Part& part, const StepContext& ctx,
              const Nodes& nodes, Scratch& scratch, Wire& wire);

// A rank's messages of one part on the transport of threads, those of frames without a size without
// their payloads.
struct PartTraffic {
  Traffic up, down;               // to the shards' servers; results back
  std::uint64_t local_bytes = 0;  // sent to ranks of the same node, if nodes are known
};
std::vector<PartTraffic> traffic_of(const Part& part, const Nodes& nodes, std::size_t ranks);

// Adds the part's cost for each rank. REQUIRES: by_rank has an entry for each rank.
void add_cost(const Part& part, const Nodes& nodes, std::span<Cost> by_rank);

// Bytes of the parts, summed over all ranks.
std::uint64_t total_bytes(std::span<const Part> parts, int voters);

}  // namespace pride
