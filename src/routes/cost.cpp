// Messages of the routes, for every rank: exact, and costs are their bytes.
// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include "routes/routes.h"

namespace pride {
namespace {

using Numbers = std::vector<std::uint64_t>;

std::uint64_t sum_of(const Numbers& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::uint64_t{0});
}

// The messages of frames of one kind, by the shard's server. A single shard counts for all ranks.
class Frames {
 public:
  Frames(const FrameKind& kind, const Part& part, std::size_t ranks) {
    for (const Shard& shard : part.shards) {
      const std::size_t body = kind.body_bytes(shard);
      bytes_.push_back((kind.sized ? kind.bytes(shard) : kHeaderBytes) + body);
      messages_.push_back(body > 0 || !kind.sized ? 2 : 1);  // without a size headers come first
    }
    bytes_.resize(ranks, bytes_.back());
    messages_.resize(ranks, messages_.back());
    all_bytes_ = sum_of(bytes_), all_messages_ = sum_of(messages_);
  }

  std::uint64_t bytes(std::size_t r) const { return bytes_[r]; }
  std::uint64_t all_bytes() const { return all_bytes_; }

  // Rank r sends each other rank the frame of its shard, and gets those of its own shard.
  Traffic to_servers(std::size_t r) const {
    const std::uint64_t others = bytes_.size() - 1;
    return {all_bytes_ - bytes_[r], others * bytes_[r], all_messages_ - messages_[r],
            others * messages_[r]};
  }
  // The way back.
  Traffic from_servers(std::size_t r) const {
    const Traffic t = to_servers(r);
    return {t.bytes_received, t.bytes_sent, t.messages_received, t.messages_sent};
  }

 private:
  Numbers bytes_, messages_;
  std::uint64_t all_bytes_ = 0, all_messages_ = 0;
};

std::vector<PartTraffic> flat(const Part& part, const Nodes& nodes, std::size_t ranks) {
  std::vector<PartTraffic> by_rank(ranks);
  const bool results = part.route == Route::kSharded;
  const Frames up(part.up, part, ranks), down(results ? part.down : part.up, part, ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    PartTraffic& mine = by_rank[r];
    mine.up = up.to_servers(r);
    if (results) mine.down = down.from_servers(r);
    for (int k = 0; nodes.known() && k < nodes.per_node(); ++k) {
      const auto other =
          static_cast<std::size_t>(nodes.rank_at(nodes.node_of(static_cast<int>(r)), k));
      if (other != r) mine.local_bytes += up.bytes(other) + (results ? down.bytes(r) : 0);
    }
  }
  return by_rank;
}

std::vector<PartTraffic> hierarchical(const Part& part, const Nodes& nodes, std::size_t ranks) {
  std::vector<PartTraffic> by_rank(ranks);
  const Frames up(part.up, part, ranks), partial(part.partial, part, ranks),
      down(part.down, part, ranks);
  const auto neighbours = static_cast<std::uint64_t>(nodes.per_node() - 1);
  const auto count = static_cast<std::uint64_t>(nodes.count()), other_nodes = count - 1;
  for (int k = 0; k < nodes.per_node(); ++k) {
    // sums over the shards that ranks with local rank k serve
    std::uint64_t k_up = 0, k_partial = 0, k_down = 0;
    const auto rank_at = [&](int node) { return static_cast<std::size_t>(nodes.rank_at(node, k)); };
    for (int h = 0; h < nodes.count(); ++h) {
      k_up += up.bytes(rank_at(h));
      k_partial += partial.bytes(rank_at(h));
      k_down += down.bytes(rank_at(h));
    }
    for (int h = 0; h < nodes.count(); ++h) {
      const std::size_t r = rank_at(h);
      const std::uint64_t local_up = up.all_bytes() - k_up, local_down = neighbours * k_down;
      const std::uint64_t within = count * neighbours;  // messages
      by_rank[r].up = {local_up + k_partial - partial.bytes(r),
                       neighbours * k_up + other_nodes * partial.bytes(r), within + other_nodes,
                       within + other_nodes};
      by_rank[r].down = {local_down + other_nodes * down.bytes(r), down.all_bytes() - down.bytes(r),
                         within + other_nodes, within + other_nodes};
      by_rank[r].local_bytes = local_up + local_down;
    }
  }
  return by_rank;
}

// The thread transport: sizes, then the values to the ranks that add them, and the sums back. The
// traffic of a library's own all-reduce is not observable.
std::vector<PartTraffic> native(const Part& part, std::size_t ranks) {
  constexpr std::size_t kWidths[] = {4, 1, 2, 4};  // in the order of Sum
  std::vector<PartTraffic> by_rank(ranks);
  const std::uint64_t others = ranks - 1, coords = part.shards[0].size();
  const std::uint64_t width = kWidths[static_cast<std::size_t>(part.sum)];
  for (std::size_t r = 0; r < ranks; ++r) {
    const std::uint64_t own = width * (coords / ranks + (r < coords % ranks ? 1 : 0));
    const std::uint64_t sizes = others * sizeof(std::uint64_t), rest = width * coords - own;
    by_rank[r].up = {sizes + rest, sizes + others * own, 2 * others, 2 * others};
    by_rank[r].down = {others * own, rest, others, others};
  }
  return by_rank;
}

}  // namespace

std::vector<PartTraffic> traffic_of(const Part& part, const Nodes& nodes, std::size_t ranks) {
  if (part.route == Route::kNative) return native(part, ranks);
  return part.route == Route::kHierarchical ? hierarchical(part, nodes, ranks)
                                            : flat(part, nodes, ranks);
}

void add_cost(const Part& part, const Nodes& nodes, std::span<Cost> by_rank) {
  const auto traffic = traffic_of(part, nodes, by_rank.size());
  for (std::size_t r = 0; r < by_rank.size(); ++r) {
    Cost& cost = by_rank[r];
    cost.bytes_up += traffic[r].up.bytes_sent;
    cost.bytes_down += traffic[r].down.bytes_sent;
    cost.bytes_local += traffic[r].local_bytes;
    if (part.route == Route::kNative && by_rank.size() > 1) cost.exact = cost.bound = false;
  }
}

std::uint64_t total_bytes(std::span<const Part> parts, int voters) {
  std::vector<Cost> by_rank(static_cast<std::size_t>(voters));
  for (const Part& part : parts) add_cost(part, {}, by_rank);
  return std::accumulate(by_rank.begin(), by_rank.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const Cost& c) { return sum + c.bytes(); });
}

}  // namespace pride
