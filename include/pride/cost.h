// Cost: what a step of a method sends.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace pride {

// Bytes that one rank sends per step, frames and padding included.
struct Cost {
  std::uint64_t bytes_up = 0;     // towards the shards' servers
  std::uint64_t bytes_down = 0;   // results back
  std::uint64_t bytes_local = 0;  // of these, to ranks of the same node, where nodes are known
  bool exact = true;              // false: what is sent depends on the data or on the transport
  bool bound = true;              // if not exact: true: never more than this; false: about this

  std::uint64_t bytes() const noexcept { return bytes_up + bytes_down; }
  std::uint64_t bytes_off_node() const noexcept { return bytes() - bytes_local; }
};

}  // namespace pride
