// Names of the machine and of the node that this process runs on.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace pride {

// Host name and boot: processes with the same name share cores.
std::string machine_name();

// Machine and network namespace: messages between processes with other names cross a network card.
std::string node_name();

}  // namespace pride
