// Which ranks share a machine.
// SPDX-License-Identifier: Apache-2.0
#include "pride/hosts.h"

#include <algorithm>
#include <map>

#include "pride/error.h"

namespace pride {

Hosts::Hosts(std::span<const int> host_of_rank) {
  PRIDE_CHECK(!host_of_rank.empty(), "hosts: no ranks");
  std::map<int, int> number;  // of a host, by what the caller calls it
  std::vector<std::vector<int>> members;
  for (std::size_t r = 0; r < host_of_rank.size(); ++r) {
    const auto [at, is_new] = number.emplace(host_of_rank[r], static_cast<int>(members.size()));
    if (is_new) members.emplace_back();
    auto& ranks = members[static_cast<std::size_t>(at->second)];
    host_of_.push_back(at->second);
    place_of_.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(static_cast<int>(r));
  }
  for (const auto& ranks : members) {
    PRIDE_CHECK(ranks.size() == members[0].size(), "hosts: ", members[0].size(),
                " ranks share the host of rank 0, ", ranks.size(), " that of rank ", ranks[0],
                "; an exchange in two levels needs as many on every host");
    ranks_.insert(ranks_.end(), ranks.begin(), ranks.end());
  }
  per_host_ = static_cast<int>(members[0].size());
}

Hosts Hosts::of_size(int world, int ranks_per_host) {
  PRIDE_CHECK(world >= 1 && ranks_per_host >= 1 && world % ranks_per_host == 0, "hosts: ", world,
              " ranks, which are not whole hosts of ", ranks_per_host);
  std::vector<int> host_of_rank;
  for (int r = 0; r < world; ++r) host_of_rank.push_back(r / ranks_per_host);
  return Hosts(host_of_rank);
}

}  // namespace pride
