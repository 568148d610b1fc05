// Names of this process's machine and node.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace pride {

// Host name and boot: processes with the same name share cores.
std::string machine_name();

// Machine and network namespace: messages between processes with different names cross a network
// card.
std::string node_name();

}  // namespace pride
