// Upload: the chunks of a ballot or of parameters, in any order, possibly repeated.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pride::coord {

inline constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

constexpr std::uint64_t chunks_of(std::uint64_t total) {
  return (total + kChunkBytes - 1) / kChunkBytes;
}
// The size of chunk `chunk`. REQUIRES: chunk < chunks_of(total).
constexpr std::size_t chunk_bytes(std::uint64_t total, std::uint64_t chunk) {
  return std::min<std::uint64_t>(kChunkBytes, total - chunk * kChunkBytes);
}

// Why a chunk does not fit an upload of `total` bytes, or is damaged; empty: it is good.
std::string refuse_chunk(std::uint64_t total, std::uint64_t chunk, std::uint64_t hash,
                         std::string_view data);

// Several threads may put chunks.
class Upload {
 public:
  // Allocates memory at the first chunk.
  Upload(std::int64_t round, std::uint64_t total);

  std::int64_t round() const noexcept { return round_; }
  std::uint64_t total() const noexcept { return total_; }

  // REQUIRES: refuse_chunk() is empty. A repeated chunk changes nothing.
  void put(std::uint64_t chunk, std::string_view data);
  std::vector<std::uint32_t> missing() const;  // ascending
  bool complete() const;
  // REQUIRES: complete(); nothing changes any more then.
  std::span<const std::byte> bytes() const noexcept { return {data_.get(), total_}; }

 private:
  const std::int64_t round_;
  const std::uint64_t total_;
  mutable std::mutex mutex_;  // guards the members below
  std::unique_ptr<std::byte[]> data_;
  std::vector<char> here_;
  std::size_t n_here_ = 0;
};

}  // namespace pride::coord
