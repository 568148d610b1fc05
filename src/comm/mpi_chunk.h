// Chunk size of mpi_comm's messages; tests shrink it to reach the path of several chunks with
// little data.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace pride::mpi {

// A message of s bytes is sent as s / limit full chunks and then one of s % limit bytes, which may
// be empty: the first chunk that is not full ends the message, so any difference in size is
// detected. The default is below Open MPI's eager limit over TCP (64 KiB). Larger messages use its
// rendezvous protocol, with which ranks that all send to all reach half of their links' rate
// (lab/docs/results/networks.md).
inline constexpr std::size_t kDefaultChunk = std::size_t{60} << 10;

// native_sum goes to MPI in parts of at most this many bytes, or of the chunk limit if a test set
// one.
inline constexpr std::size_t kLongestSum = std::size_t{1} << 30;

// Sets the limit of communicators made later. REQUIRES: 1 <= limit < 2^31, the same on all ranks.
void set_chunk_limit(std::size_t limit);
std::size_t chunk_limit() noexcept;

}  // namespace pride::mpi
