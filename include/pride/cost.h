// Cost: bytes sent in a step of a method.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace pride {

// Bytes that one rank sends per step, frames and padding included.
struct Cost {
  std::uint64_t bytes_up = 0;     // towards the shards' servers
  std::uint64_t bytes_down = 0;   // results back
  std::uint64_t bytes_local = 0;  // of both: bytes to ranks of the same node, if nodes are known
  bool exact = true;              // false: bytes depend on the data or on the transport
  bool bound = true;              // if not exact: true: an upper bound; false: an estimate

  std::uint64_t bytes() const noexcept { return bytes_up + bytes_down; }
  std::uint64_t bytes_off_node() const noexcept { return bytes() - bytes_local; }
  Cost& operator+=(const Cost& other) noexcept {
    bytes_up += other.bytes_up;
    bytes_down += other.bytes_down;
    bytes_local += other.bytes_local;
    exact = exact && other.exact;
    bound = bound && other.bound;
    return *this;
  }
};

}  // namespace pride
