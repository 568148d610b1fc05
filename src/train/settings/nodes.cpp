// Which ranks share a node.
// SPDX-License-Identifier: Apache-2.0
#include "train/settings/nodes.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <vector>

#include "base/machine.h"
#include "pride/error.h"

namespace pride::train {
namespace {

// 0: no number.
int ranks_per_node(const std::string& value) {
  int number = 0;
  const char* end = value.data() + value.size();
  const auto [stopped, error] = std::from_chars(value.data(), end, number);
  return error == std::errc() && stopped == end && number > 0 ? number : 0;
}

}  // namespace

std::string wrong_hierarchical(const std::string& value) {
  if (value == "auto" || ranks_per_node(value) > 0) return "";
  return concat("'", value, "': a number of ranks a node, or auto");
}

Nodes nodes_of(Communicator& comm, const std::string& value) {
  if (value != "auto") return nodes_of_threads(comm.size(), value);
  using Name = std::array<char, 512>;
  Name mine{};
  node_name().copy(mine.data(), mine.size() - 1);
  std::vector<Name> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  std::vector<int> node_of_rank;
  for (const Name& name : all) {
    const auto first = std::ranges::find(all, name);
    node_of_rank.push_back(static_cast<int>(std::distance(all.begin(), first)));
  }
  return Nodes(node_of_rank);
}

Nodes nodes_of_threads(int world, const std::string& value) {
  if (value.empty()) return {};
  if (value == "auto") return Nodes::of_size(world, world);
  const int per_node = ranks_per_node(value);
  PRIDE_CHECK(per_node > 0 && world % per_node == 0, "--hierarchical ", value, ": the ", world,
              " ranks are not whole nodes of as many");
  return Nodes::of_size(world, per_node);
}

}  // namespace pride::train
