// Names of this process's machine and node.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <array>
#include <fstream>

#include "pride/error.h"
#include "pride/nodes.h"

namespace pride {

std::string machine_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  return concat(name.data(), " ", boot);
}

std::string node_name() {
  std::array<char, 256> network{};
  if (readlink("/proc/self/ns/net", network.data(), network.size() - 1) < 0) network[0] = '\0';
  return concat(machine_name(), " ", network.data());
}

}  // namespace pride
