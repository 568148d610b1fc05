// The network interfaces that carry a job's bytes, and warnings about others that would be better.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "pride/communicator.h"

namespace pride {

// An interface that is up, and one of its addresses.
struct Interface {
  std::string name;       // "eth0"
  std::string address;    // "10.0.0.1"
  std::string network;    // the address without the host's part, in hex
  std::int64_t mbit = 0;  // the speed of its link, of /sys/class/net; 0: unknown
  std::string kind;       // "wired", "wireless", "virtual" or "loopback"
};

// The interfaces of one rank.
struct RankNetwork {
  std::string machine;  // differs between machines
  std::string used;     // name of an interface, or its address; empty: unknown
  std::vector<Interface> interfaces;
};

struct NetworkReport {
  std::string line;                   // names interface, address and speed
  std::vector<std::string> warnings;  // each a line
};

// This machine's.
RankNetwork own_network(const std::string& used);

// Empty if all ranks are on one machine, or none says what it uses.
NetworkReport network_report(std::span<const RankNetwork> ranks);

// The same for the ranks of a communicator. Collective.
NetworkReport network_report(Communicator& comm, const std::string& used);

}  // namespace pride
