// The hierarchical route: first within nodes, then between nodes. With L ranks on each of H nodes,
// each rank
//   1. sends H frames to each other rank of its node: for the shards that this rank and its
//      same-local-rank peers on the other nodes serve;
//   2. makes its node's partial results for its own same-local-rank peers, and sends one to each;
//   3. makes the result of its shard from H partial results, and sends it to these peers;
//   4. forwards the H results of its local rank to the L - 1 other ranks of its node.
// Traffic off the node: (H-1)/H * (p + r) bits a coordinate and node, with partial results of p
// bits and results of r; only p grows with L.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "routes/exchange.h"

namespace pride {

// The order differs by rank, so that the ranks do not all send to one rank at a time.
template <typename Body>
void Exchange::for_other_nodes(const Body& body) const {
  for (int d = 1; d < nodes_.count(); ++d) body((here_ + d) % nodes_.count());
}
template <typename Body>
void Exchange::for_neighbours(const Body& body) const {
  const int mine = nodes_.local_rank(ctx_.rank);
  for (int d = 1; d < nodes_.per_node(); ++d) body((mine + d) % nodes_.per_node());
}

void Exchange::hierarchical() {
  gather_node();
  make_partials();
  trade_partials();
  if (wire_.non_finite) return;
  std::vector<Frame> partials;
  for (int h = 0; h < nodes_.count(); ++h) {
    const auto& list = h == here_ ? scratch_.partial_up : scratch_.partial_in;
    partials.push_back({list[index(h)].span()});
  }
  serve(FrameRole::kPartial, partials, FrameRole::kDown, part_.shards[me_], wire_.down[me_].span());
  spread();
}

void Exchange::gather_node() {
  Messages m;
  for_neighbours([&](int k) {
    for (int h = 0; h < nodes_.count(); ++h) {
      const std::size_t theirs = index(nodes_.rank_at(h, k));
      seal_as(FrameRole::kUp, part_.shards[theirs], wire_.up[theirs].span());
      ByteBuffer& in = from_neighbour(h, k);
      in.resize(wire_.up[index(same_local_rank(h))].size());
      m.send.push_back({neighbour(k), wire_.up[theirs].span()});
      m.recv.push_back({neighbour(k), in.span()});
    }
  });
  trade(m);
  const std::string text = where(FrameRole::kUp);
  const auto for_all = [&](const auto& body) {
    for (int k = 0; k < nodes_.per_node(); ++k) {
      for (int h = 0; h < nodes_.count() && neighbour(k) != ctx_.rank; ++h) {
        body(part_.shards[index(same_local_rank(h))], Frame{from_neighbour(h, k).span()},
             neighbour(k));
      }
    }
  };
  for_all([&](const Shard& shard, const Frame& frame, int from) {
    open_as(FrameRole::kUp, shard, frame, from, text);
  });
  if (wire_.non_finite) return;
  for_all([&](const Shard& shard, const Frame& frame, int from) {
    check(FrameRole::kUp, shard, frame, from, text);
  });
}

// Serves the frames of this node's ranks for the shards of the same-local-rank peers.
void Exchange::make_partials() {
  const std::optional<NonFinite> ours = wire_.non_finite;
  for (int h = 0; h < nodes_.count(); ++h) {
    const int peer = same_local_rank(h);
    const Shard& shard = part_.shards[index(peer)];
    ByteBuffer& partial = scratch_.partial_up[index(h)];
    partial.resize(part_.partial.bytes(shard));
    if (ours) {
      std::ranges::fill(partial.span().subspan(kHeaderBytes), std::byte{0});
    } else {
      std::vector<Frame> frames;
      for (int k = 0; k < nodes_.per_node(); ++k) {
        frames.push_back(neighbour(k) == ctx_.rank ? Frame{wire_.up[index(peer)].span()}
                                                   : Frame{from_neighbour(h, k).span()});
      }
      serve(FrameRole::kUp, frames, FrameRole::kPartial, shard, partial.span());
    }
    if (h != here_) seal_as(FrameRole::kPartial, shard, partial.span());
  }
}

// Every rank receives from every node here, so all choose the same non-finite flag.
void Exchange::trade_partials() {
  const Shard& mine = part_.shards[me_];
  Messages m;
  for_other_nodes([&](int h) {
    scratch_.partial_in[index(h)].resize(part_.partial.bytes(mine));
    m.send.push_back({same_local_rank(h), scratch_.partial_up[index(h)].span()});
    m.recv.push_back({same_local_rank(h), scratch_.partial_in[index(h)].span()});
  });
  trade(m);
  const std::string text = where(FrameRole::kPartial);
  for_other_nodes([&](int h) {
    open_as(FrameRole::kPartial, mine, {scratch_.partial_in[index(h)].span()}, same_local_rank(h),
            text);
  });
  if (wire_.non_finite) return;
  for_other_nodes([&](int h) {
    check(FrameRole::kPartial, mine, {scratch_.partial_in[index(h)].span()}, same_local_rank(h),
          text);
  });
}

void Exchange::spread() {
  seal_as(FrameRole::kDown, part_.shards[me_], wire_.down[me_].span());
  const std::string text = where(FrameRole::kDown);
  Messages between;
  for_other_nodes([&](int h) {
    between.send.push_back({same_local_rank(h), wire_.down[me_].span()});
    between.recv.push_back({same_local_rank(h), wire_.down[index(same_local_rank(h))].span()});
  });
  trade(between);
  // checked before forwarding: an error names the server, not the rank that forwarded its frame
  for_other_nodes([&](int h) { take_result(same_local_rank(h), text); });

  Messages within;
  for_neighbours([&](int k) {
    for (int h = 0; h < nodes_.count(); ++h) {
      within.send.push_back({neighbour(k), wire_.down[index(same_local_rank(h))].span()});
      within.recv.push_back({neighbour(k), wire_.down[index(nodes_.rank_at(h, k))].span()});
    }
  });
  trade(within);
  for_neighbours([&](int k) {
    for (int h = 0; h < nodes_.count(); ++h) {
      const std::string passed_on = concat(text, ", forwarded by rank ", neighbour(k));
      take_result(nodes_.rank_at(h, k), h == here_ ? text : passed_on);
    }
  });
}

void Exchange::take_result(int server, const std::string& where) {
  const Shard& shard = part_.shards[index(server)];
  open_as(FrameRole::kDown, shard, down(index(server)), server, where);
  if (wire_.non_finite) return;
  check(FrameRole::kDown, shard, down(index(server)), server, where);
}

}  // namespace pride
