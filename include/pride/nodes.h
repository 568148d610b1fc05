// Nodes: ranks grouped by machine, for the hierarchical route; names of machines.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace pride {

// All nodes have equally many ranks. Ranks of a node are numbered from 0 in the order of the ranks
// (local ranks); same-local-rank peers are the ranks with the same local rank on all nodes.
class Nodes {
 public:
  Nodes() = default;  // the nodes are not known

  // node_of_rank[r]: any number that identifies the machine of rank r, e.g. from an all-gather of
  // names. Throws InvalidArgument unless all nodes have the same number of ranks.
  explicit Nodes(std::span<const int> node_of_rank);

  // Ranks 0 to ranks_per_node - 1 on the first node, and so on.
  // Throws InvalidArgument unless `ranks_per_node` divides `world`.
  static Nodes of_size(int world, int ranks_per_node);

  bool known() const noexcept { return per_node_ > 0; }
  int world() const noexcept { return static_cast<int>(node_of_.size()); }
  int per_node() const noexcept { return per_node_; }
  int count() const noexcept { return known() ? world() / per_node_ : 0; }

  // True if the hierarchical route differs from the sharded one.
  bool hierarchical() const noexcept { return per_node_ > 1 && count() > 1; }

  // Nodes are numbered by their first rank; local ranks are from 0 to per_node() - 1.
  int node_of(int rank) const { return node_of_.at(static_cast<std::size_t>(rank)); }
  int local_rank(int rank) const { return local_rank_.at(static_cast<std::size_t>(rank)); }
  int rank_at(int node, int local_rank) const {
    return ranks_.at(static_cast<std::size_t>(node * per_node_ + local_rank));
  }

 private:
  int per_node_ = 0;
  std::vector<int> node_of_, local_rank_;  // by rank
  std::vector<int> ranks_;                 // node after node
};

// Host name and boot: processes with the same name share cores.
std::string machine_name();

// Machine and network namespace: messages between processes with different names cross a network
// card.
std::string node_name();

}  // namespace pride
