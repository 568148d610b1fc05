// Messages of the transport contract: byte k of the one from rank i to rank j is pattern(i, j, k).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <vector>

#include "pride/communicator.h"

namespace pride::contract {

using Message = std::vector<std::byte>;

// Chunk size of transports in tests, to reach the path of several chunks.
inline constexpr std::size_t kSmallChunk = 4096;

// Nothing, one, around the world's size, odd, around the small chunk, and some megabytes.
inline std::vector<std::size_t> sizes(int world) {
  const auto n = static_cast<std::size_t>(world);
  return {0,
          1,
          n - 1,
          n,
          997,
          kSmallChunk - 1,
          kSmallChunk,
          3 * kSmallChunk,
          2 * kSmallChunk + 5,
          (std::size_t{3} << 20) + 1};
}

inline std::byte pattern(int from, int to, std::size_t k) {
  const auto value =
      static_cast<std::size_t>(from) * 131 + static_cast<std::size_t>(to) * 31 + k * 7 + k / 251;
  return static_cast<std::byte>(value & 0xff);
}

inline Message message(int from, int to, std::size_t size) {
  Message bytes(size);
  for (std::size_t k = 0; k < size; ++k) bytes[k] = pattern(from, to, k);
  return bytes;
}

// Index of the first byte that is not the pattern's, or the size.
inline std::size_t first_wrong(std::span<const std::byte> bytes, int from, int to) {
  for (std::size_t k = 0; k < bytes.size(); ++k) {
    if (bytes[k] != pattern(from, to, k)) return k;
  }
  return bytes.size();
}

inline void expect_message(const Communicator& comm, std::span<const std::byte> bytes, int from,
                           int to) {
  EXPECT_EQ(first_wrong(bytes, from, to), bytes.size())
      << "rank " << comm.rank() << " of " << comm.size() << ", message of " << bytes.size()
      << " bytes from rank " << from << " to rank " << to;
}

// The size of the message from i to j in the variable-size checks.
inline std::size_t uneven(std::size_t size, int from, int to) {
  return size == 0 ? 0
                   : (size * static_cast<std::size_t>(from + 1) + static_cast<std::size_t>(to)) %
                         (size + 7);
}

inline std::vector<int> gather_int(Communicator& comm, int mine) {
  std::vector<int> all(comm.size());
  comm.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

}  // namespace pride::contract
