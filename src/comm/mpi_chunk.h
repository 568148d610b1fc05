// The size above which mpi_comm cuts a message up; tests shrink it to reach that path with little.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace pride::mpi {

// A message of s bytes travels as s / limit full chunks and then one of s % limit bytes, which may
// be empty: the first chunk that is not full ends the message, so any difference in size shows.
// Below Open MPI's eager limit over TCP (64 KiB): with its rendezvous, which larger messages get,
// ranks that all send to all reach half of their links' rate (docs/performance.md).
inline constexpr std::size_t kDefaultChunk = std::size_t{60} << 10;

// native_sum goes to MPI in parts of so many bytes at most, or of the chunk limit if a test set
// one.
inline constexpr std::size_t kLongestSum = std::size_t{1} << 30;

// Of the communicators made from now on. All ranks must use the same. REQUIRES: 1 <= limit < 2^31.
void set_chunk_limit(std::size_t limit);
std::size_t chunk_limit() noexcept;

}  // namespace pride::mpi
