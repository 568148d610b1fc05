// SPDX-License-Identifier: Apache-2.0
#include "methods/vote_weights.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "methods/registry.h"
#include "pride/error.h"

namespace pride {
namespace {

constexpr std::size_t kMostInText = 16;

// "1, 5, 3": of the first ranks.
std::string text_of(std::span<const std::int64_t> weights) {
  std::string text;
  for (std::size_t r = 0; r < std::min(weights.size(), kMostInText); ++r) {
    text += concat(r == 0 ? "" : ", ", weights[r]);
  }
  return weights.size() > kMostInText ? text + ", ..." : text;
}

}  // namespace

std::vector<int> vote_weights(std::string_view method, const Protocol& protocol, const Nodes& nodes,
                              std::span<const std::int64_t> given) {
  std::int64_t divisor = 0, votes = 0;
  for (std::size_t r = 0; r < given.size(); ++r) {
    PRIDE_CHECK(given[r] >= 1 && given[r] <= kMostVoteWeight, method, ": vote weight ", given[r],
                " of rank ", r, ", must be from 1 to ", kMostVoteWeight);
    divisor = std::gcd(divisor, given[r]);
    votes += given[r];
  }
  if (std::ranges::all_of(given, [&](std::int64_t w) { return w == given[0]; })) return {};
  PRIDE_CHECK(protocol.most_votes > 0, method, " has no vote weights, given are ", text_of(given),
              "; methods with vote weights: ",
              methods_with([](const Protocol& p) { return p.most_votes > 0; }));
  votes /= divisor;
  PRIDE_CHECK(votes <= protocol.most_votes, method, ": the ranks' vote weights ", text_of(given),
              ", divided by their common divisor ", divisor, ", have the sum ", votes,
              ", must be at most ", protocol.most_votes, "; use smaller weights");
  std::vector<int> weights;
  for (const std::int64_t w : given) weights.push_back(static_cast<int>(w / divisor));
  const SharedContext shared{.voters = static_cast<int>(given.size()), .weights = weights};
  for (int h = 0; nodes.hierarchical() && h < nodes.count(); ++h) {
    const int of_node = votes_of_node(shared, nodes, h);
    PRIDE_CHECK(of_node <= kMostVoteWeight, method, ": the vote weights of the ranks on the node ",
                "of rank ", nodes.rank_at(h, 0), " have the sum ", of_node, ", must be at most ",
                kMostVoteWeight, " on the hierarchical route; use smaller weights");
  }
  return weights;
}

}  // namespace pride
