// SPDX-License-Identifier: Apache-2.0
#include "optimizer/resharding.h"

#include <algorithm>

#include "pride/error.h"

namespace pride {
namespace {

// All shards, as moves from each server to itself, ascending.
std::vector<Move> served(std::span<const Bucket> buckets) {
  std::vector<Move> runs;
  for (const Bucket& b : buckets) {
    for (std::size_t r = 0; r < b.shards.size(); ++r) {
      const auto rank = static_cast<int>(r);
      runs.push_back({b.shards[r].begin, b.shards[r].end, rank, rank});
    }
  }
  std::ranges::sort(runs, {}, &Move::begin);
  return runs;
}

using Saved = StateDict::Tensor;

const Saved& tensor_of(const StateDict& state, std::size_t rank, const std::string& key,
                       std::size_t n) {
  const auto found = state.tensors.find(key);
  PRIDE_CHECK(found != state.tensors.end(), "load: the state of rank ", rank, " has no tensor '",
              key, "'");
  PRIDE_CHECK(found->second.values.size() == n, "load: tensor '", key, "' of rank ", rank, " has ",
              found->second.values.size(), " values, the layout has ", n);
  return found->second;
}

Saved shared_by_all(std::span<const Saved* const> ranks, const std::string& key) {
  const auto bits = [](const Saved* t) { return std::as_bytes(std::span(t->values)); };
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    PRIDE_CHECK(std::ranges::equal(bits(ranks[r]), bits(ranks[0])), "load: tensor '", key,
                "' is the same on all ranks, but not in the states of ranks 0 and ", r);
  }
  return *ranks[0];
}

Saved local_of(int rank, std::span<const Saved* const> ranks, LocalState policy) {
  Saved mine = *ranks[static_cast<std::size_t>(rank) % ranks.size()];
  if (policy == LocalState::kReset) std::ranges::fill(mine.values, 0.0F);
  if (policy != LocalState::kAverage) return mine;
  for (std::size_t i = 0; i < mine.values.size(); ++i) {
    double sum = 0;
    for (const Saved* t : ranks) sum += t->values[i];
    mine.values[i] = static_cast<float>(sum / static_cast<double>(ranks.size()));
  }
  return mine;
}

Saved served_by(int rank, std::span<const Saved* const> ranks, const TensorSlot& slot,
                std::span<const Move> moves) {
  Saved mine = *ranks[0];
  std::ranges::fill(mine.values, 0.0F);
  for (const Move& m : moves) {
    const std::size_t begin = std::max(m.begin, slot.offset);
    const std::size_t end = std::min(m.end, slot.offset + slot.n);
    if (m.to != rank || begin >= end) continue;
    const auto& values = ranks[static_cast<std::size_t>(m.from)]->values;
    std::ranges::copy(std::span(values).subspan(begin - slot.offset, end - begin),
                      mine.values.begin() + static_cast<std::ptrdiff_t>(begin - slot.offset));
  }
  return mine;
}

}  // namespace

StateDict state_of_rank(int rank, std::span<const StateDict> all, const Layout& layout,
                        const StateTable& table, LocalState policy, std::span<const Move> moves) {
  StateDict state{.tensors = {}, .scalars = all[0].scalars};
  for (std::size_t r = 1; r < all.size(); ++r) {
    for (const auto& [key, tensor] : all[r].tensors) {
      PRIDE_CHECK(all[0].tensors.contains(key), "load: the state of rank ", r, " holds '", key,
                  "', that of rank 0 does not");
    }
  }
  for (const auto& [key, of_rank_0] : all[0].tensors) {
    const std::string name = key.substr(key.find('/') + 1);
    const auto found =
        std::ranges::find(layout.tensors(), name, [](const TensorSlot& t) { return t.spec.name; });
    PRIDE_CHECK(found != layout.tensors().end(), "load: the state holds '", key,
                "', which no parameter has");
    const TensorSlot& slot = *found;
    std::vector<const Saved*> ranks;
    for (std::size_t r = 0; r < all.size(); ++r) {
      ranks.push_back(&tensor_of(all[r], r, key, slot.n));
    }
    switch (table.kind_of(key)) {
      case StateKind::kLocal:
        state.tensors[key] = local_of(rank, ranks, policy);
        break;
      case StateKind::kShared:
        state.tensors[key] = shared_by_all(ranks, key);
        break;
      case StateKind::kServer:
        state.tensors[key] = served_by(rank, ranks, slot, moves);
    }
  }
  return state;
}

std::vector<Move> moves_between(std::span<const Bucket> from, std::span<const Bucket> to) {
  const auto old_runs = served(from), new_runs = served(to);
  std::vector<Move> moves;
  for (auto a = old_runs.begin(), b = new_runs.begin();
       a != old_runs.end() && b != new_runs.end();) {
    const std::size_t begin = std::max(a->begin, b->begin), end = std::min(a->end, b->end);
    if (begin < end) moves.push_back({begin, end, a->from, b->to});
    ++(a->end < b->end ? a : b);
  }
  return moves;
}

void move_to_servers(Communicator& comm, std::span<const Bucket> from, std::span<const Bucket> to,
                     std::span<const Floats> buffers) {
  const Communicator::Scope scope(comm, "move of the servers' state");
  const auto moves = moves_between(from, to);
  std::vector<Outgoing> send;
  std::vector<Incoming> recv;
  for (const Move& m : moves) {
    for (const Floats& buffer : buffers) {
      const auto part = buffer.span().subspan(m.begin, m.end - m.begin);
      if (m.from == m.to) continue;
      if (m.from == comm.rank()) send.push_back({m.to, std::as_bytes(part)});
      if (m.to == comm.rank()) recv.push_back({m.from, std::as_writable_bytes(part)});
    }
  }
  comm.all_to_all_v(send, recv);
  for (const Move& m : moves) {
    if (m.to == comm.rank()) continue;
    for (const Floats& buffer : buffers) {
      std::ranges::fill(buffer.span().subspan(m.begin, m.end - m.begin), 0.0F);
    }
  }
}

}  // namespace pride
