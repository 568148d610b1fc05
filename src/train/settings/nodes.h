// Which ranks share a node, as the flag --hierarchical says it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "pride/communicator.h"
#include "pride/nodes.h"

namespace pride::train {

inline constexpr const char* kHierarchicalHelp =
    "Exchange on the hierarchical route, so that fewer bytes leave a node: ranks that share a node "
    "add their signs up, nodes exchange counts. L: L ranks a node, in order; auto: by machine and "
    "network namespace. Only for methods that exchange signs; never changes a result";

// Empty, or what is wrong with the flag's value, as CLI11's checks say it.
std::string wrong_hierarchical(const std::string& value);

// Nodes of the ranks of `comm`; not known if `value` is empty. Collective.
// Throws InvalidArgument if not all nodes have as many ranks.
Nodes nodes_of(Communicator& comm, const std::string& value);

// The same of `world` threads of one process: auto finds one node.
Nodes nodes_of_threads(int world, const std::string& value);

}  // namespace pride::train
