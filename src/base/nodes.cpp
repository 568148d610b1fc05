// Nodes: ranks grouped by machine.
// SPDX-License-Identifier: Apache-2.0
#include "pride/nodes.h"

#include <map>

#include "pride/error.h"

namespace pride {

Nodes::Nodes(std::span<const int> node_of_rank) {
  PRIDE_CHECK(!node_of_rank.empty(), "nodes: the list of ranks is empty");
  std::map<int, int> number;  // node numbers by the caller's keys
  std::vector<std::vector<int>> members;
  for (std::size_t r = 0; r < node_of_rank.size(); ++r) {
    const auto [at, is_new] = number.emplace(node_of_rank[r], static_cast<int>(members.size()));
    if (is_new) members.emplace_back();
    auto& ranks = members[static_cast<std::size_t>(at->second)];
    node_of_.push_back(at->second);
    local_rank_.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(static_cast<int>(r));
  }
  for (const auto& ranks : members) {
    PRIDE_CHECK(ranks.size() == members[0].size(), "nodes: the node of rank 0 has ",
                members[0].size(), " ranks, that of rank ", ranks[0], " has ", ranks.size(),
                "; the hierarchical route needs equal numbers");
    ranks_.insert(ranks_.end(), ranks.begin(), ranks.end());
  }
  per_node_ = static_cast<int>(members[0].size());
}

Nodes Nodes::of_size(int world, int ranks_per_node) {
  PRIDE_CHECK(world >= 1 && ranks_per_node >= 1 && world % ranks_per_node == 0, "nodes: ", world,
              " ranks cannot be divided into nodes of ", ranks_per_node);
  std::vector<int> node_of_rank;
  for (int r = 0; r < world; ++r) node_of_rank.push_back(r / ranks_per_node);
  return Nodes(node_of_rank);
}

}  // namespace pride
