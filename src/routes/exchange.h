// Exchange: moves the frames of one part, on one rank.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "routes/routes.h"

namespace pride {

class Exchange {
 public:
  Exchange(Communicator& comm, const Server& server, const Part& part, const StepContext& ctx,
           const Nodes& nodes, Scratch& scratch, Wire& wire);

  void sharded();
  void one_shot();
  void hierarchical();
  void native();

 private:
  struct Messages {
    std::vector<Outgoing> send;
    std::vector<Incoming> recv;
  };

  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  std::string where(FrameRole role) const {
    return concat(part_.frames(role).name, " frames of bucket ", part_.bucket);
  }
  void trade(const Messages& m) { comm_.all_to_all_v(m.send, m.recv); }

  // This rank's frame for shard j; the server's result for shard j; the frame received from rank i.
  Frame up(std::size_t j) const { return {wire_.up[j].span(), wire_.up_body[j]}; }
  Frame down(std::size_t j) const { return {wire_.down[j].span(), wire_.down_body[j]}; }
  Frame in(std::size_t i) const;
  std::vector<Frame> all_in() const;

  int weight_of(FrameRole role, int sender) const;
  FrameHeader header(FrameRole role, const Shard& shard, int sender) const;
  void seal_as(FrameRole role, const Shard& shard, std::span<std::byte> head,
               std::span<const std::byte> body = {}) const;
  // Checks the header. Keeps the lowest non-finite flag: all ranks get the same flags and agree.
  void open_as(FrameRole role, const Shard& shard, const Frame& frame, int from,
               const std::string& where);
  void check(FrameRole role, const Shard& shard, const Frame& frame, int from,
             const std::string& where) const;
  void open_from_all(const Shard& shard);
  void gather_unsized();
  void serve(FrameRole from, std::span<const Frame> frames, FrameRole to, const Shard& shard,
             std::span<std::byte> head, std::span<std::byte> body = {});

  // hierarchical.cpp
  int same_local_rank(int node) const { return nodes_.rank_at(node, nodes_.local_rank(ctx_.rank)); }
  int neighbour(int local_rank) const { return nodes_.rank_at(here_, local_rank); }
  ByteBuffer& from_neighbour(int node, int local_rank) {
    return scratch_.in[index(node * nodes_.per_node() + local_rank)];
  }
  template <typename Body>
  void for_other_nodes(const Body& body) const;
  template <typename Body>
  void for_neighbours(const Body& body) const;
  void gather_node();
  void make_partials();
  void trade_partials();
  void spread();
  void take_result(int server, const std::string& where);

  Communicator& comm_;
  const Server& server_;
  const Part& part_;
  const StepContext& ctx_;
  const Nodes& nodes_;
  Scratch& scratch_;
  Wire& wire_;
  const std::size_t me_;
  const int here_;                 // this rank's node
  std::vector<int> node_weights_;  // votes of its ranks, by local rank; empty: 1 each
};

}  // namespace pride
