// Bytes sent by the routes: exact, for every rank.
// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include "routes/routes.h"

namespace pride {
namespace {

using Bytes = std::vector<std::uint64_t>;

// Bytes of a frame of this kind, by the shard's server. A single shard counts for all ranks.
Bytes bytes_of(const FrameKind& kind, const Part& part, std::size_t ranks) {
  Bytes bytes;
  for (const Shard& shard : part.shards) {
    bytes.push_back((kind.sized ? kind.bytes(shard) : kHeaderBytes) + kind.body_bytes(shard));
  }
  bytes.resize(ranks, bytes.back());
  return bytes;
}

std::uint64_t sum_of(const Bytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
}

// Each rank sends up[j] to rank j, and down[own] to each other rank.
void add_flat(const Bytes& up, const Bytes& down, const Nodes& nodes, std::span<Cost> by_rank) {
  const std::uint64_t all = sum_of(up), others = by_rank.size() - 1;
  for (std::size_t r = 0; r < by_rank.size(); ++r) {
    by_rank[r].bytes_up += all - up[r];
    by_rank[r].bytes_down += others * down[r];
    for (int k = 0; nodes.known() && k < nodes.per_node(); ++k) {
      const int other = nodes.rank_at(nodes.node_of(static_cast<int>(r)), k);
      if (other == static_cast<int>(r)) continue;
      by_rank[r].bytes_local += up[static_cast<std::size_t>(other)] + down[r];
    }
  }
}

void add_hierarchical(const Part& part, const Nodes& nodes, std::span<Cost> by_rank) {
  const Bytes up = bytes_of(part.up, part, by_rank.size());
  const Bytes partial = bytes_of(part.partial, part, by_rank.size());
  const Bytes down = bytes_of(part.down, part, by_rank.size());
  const auto neighbours = static_cast<std::uint64_t>(nodes.per_node() - 1);
  const auto other_nodes = static_cast<std::uint64_t>(nodes.count() - 1);
  const std::uint64_t all_up = sum_of(up);
  for (int k = 0; k < nodes.per_node(); ++k) {
    // sums over the shards that ranks with local rank k serve
    std::uint64_t k_up = 0, k_partial = 0, k_down = 0;
    for (int h = 0; h < nodes.count(); ++h) {
      const auto r = static_cast<std::size_t>(nodes.rank_at(h, k));
      k_up += up[r];
      k_partial += partial[r];
      k_down += down[r];
    }
    for (int h = 0; h < nodes.count(); ++h) {
      const auto r = static_cast<std::size_t>(nodes.rank_at(h, k));
      const std::uint64_t local_up = all_up - k_up, local_down = neighbours * k_down;
      by_rank[r].bytes_up += local_up + k_partial - partial[r];
      by_rank[r].bytes_down += local_down + other_nodes * down[r];
      by_rank[r].bytes_local += local_up + local_down;
    }
  }
}

// Traffic of the thread transport: sizes, then the values to the ranks that add them, and the sums
// back. The traffic of a library's own all-reduce is not observable.
void add_native(const Part& part, std::span<Cost> by_rank) {
  constexpr std::size_t kWidths[] = {4, 1, 2, 4};  // in the order of Sum
  const std::size_t n = by_rank.size(), coords = part.shards[0].size();
  const std::size_t width = kWidths[static_cast<std::size_t>(part.sum)];
  for (std::size_t r = 0; r < n; ++r) {
    const std::size_t own = width * (coords / n + (r < coords % n ? 1 : 0));
    by_rank[r].bytes_up += (n - 1) * sizeof(std::uint64_t) + width * coords - own;
    by_rank[r].bytes_down += (n - 1) * own;
    if (n > 1) by_rank[r].exact = by_rank[r].bound = false;
  }
}

}  // namespace

void add_cost(const Part& part, const Nodes& nodes, std::span<Cost> by_rank) {
  const std::size_t n = by_rank.size();
  switch (part.route) {
    case Route::kSharded:
      return add_flat(bytes_of(part.up, part, n), bytes_of(part.down, part, n), nodes, by_rank);
    case Route::kOneShot:
      return add_flat(bytes_of(part.up, part, n), Bytes(n), nodes, by_rank);
    case Route::kHierarchical:
      return add_hierarchical(part, nodes, by_rank);
    case Route::kNative:
      return add_native(part, by_rank);
  }
}

std::uint64_t total_bytes(std::span<const Part> parts, int voters) {
  std::vector<Cost> by_rank(static_cast<std::size_t>(voters));
  for (const Part& part : parts) add_cost(part, {}, by_rank);
  return std::accumulate(by_rank.begin(), by_rank.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const Cost& c) { return sum + c.bytes(); });
}

}  // namespace pride
