// The routes of ranks that one process plays: their frames lie in its memory, so nothing is sent.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "pride/nodes.h"
#include "routes/routes.h"

namespace pride {

// The exchange of one part, as exchange() on all ranks of the transport of threads. It has the same
// results, flags and counted bytes; frames are not sealed. Call begin(); then, unless it returns a
// flag, serve() once for each task, on any thread; then end().
class InProcess {
 public:
  // A rank: its server, its step, its frames, and what it would have sent and received.
  struct Rank {
    const Server& server;
    const StepContext& ctx;
    Wire& wire;
    Traffic& traffic;
  };
  // `part` and what `ranks` refer to must outlive this object; one for each voter, in order.
  InProcess(const Part& part, std::vector<Rank> ranks, const Nodes& nodes);

  // The first non-finite flag of the ranks' frames, which all get.
  std::optional<NonFinite> begin();
  std::size_t tasks() const noexcept { return native() ? ranks_.size() : part_.shards.size(); }
  void serve(std::size_t task);
  // Results are those of rank 0; `all`: the other ranks get copies. The flag of the servers, if
  // any.
  std::optional<NonFinite> end(bool all);

 private:
  bool native() const noexcept { return part_.route == Route::kNative; }
  std::optional<NonFinite> agree() const;
  void serve_shard(std::size_t shard) const;
  void serve_nodes(std::size_t shard) const;
  void serve(std::size_t shard, FrameRole from, std::span<const Frame> frames,
             std::span<const int> weights, FrameRole to, std::span<std::byte> head,
             std::span<std::byte> body) const;
  void add(std::size_t chunk) const;
  void count(Traffic PartTraffic::*way) const;
  void count_payloads() const;

  const Part& part_;
  const std::vector<Rank> ranks_;
  const Nodes nodes_;
  std::vector<PartTraffic> traffic_;  // by rank
};

}  // namespace pride
