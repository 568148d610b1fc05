// Which ranks share a host, as the flag --hierarchical says it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "pride/communicator.h"
#include "pride/hosts.h"

namespace pride::app {

inline constexpr const char* kHierarchicalHelp =
    "Exchange in two levels, so that fewer bytes leave a host: ranks that share a host add their "
    "signs up, hosts exchange counts. L: L ranks a host, in order; auto: by machine and network "
    "namespace. Only for methods that exchange signs; never changes a result";

// Empty, or what is wrong with the flag's value, as CLI11's checks say it.
std::string wrong_hierarchical(const std::string& value);

// Hosts of the ranks of `comm`; not known if `value` is empty. Collective.
// Throws InvalidArgument if not all hosts have as many ranks.
Hosts hosts_of(Communicator& comm, const std::string& value);

// The same of `world` threads of one process: auto finds one host.
Hosts hosts_of_threads(int world, const std::string& value);

}  // namespace pride::app
