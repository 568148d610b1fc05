// SPDX-License-Identifier: Apache-2.0
#include "coord/uploads.h"

#include <algorithm>

#include "pride/digest.h"
#include "pride/error.h"

namespace pride::coord {

std::string refuse_chunk(std::uint64_t total, std::uint64_t chunk, std::uint64_t hash,
                         std::string_view data) {
  if (chunk >= chunks_of(total)) {
    return concat("chunk ", chunk, " of ", chunks_of(total), " chunks");
  }
  if (data.size() != chunk_bytes(total, chunk)) {
    return concat("chunk ", chunk, " has ", data.size(), " bytes, not ", chunk_bytes(total, chunk));
  }
  if (hash_bytes(std::as_bytes(std::span(data))) != hash) {
    return concat("the hash of chunk ", chunk, " does not match its bytes");
  }
  return {};
}

Upload::Upload(std::int64_t round, std::uint64_t total)
    : round_(round), total_(total), here_(chunks_of(total), 0) {}

void Upload::put(std::uint64_t chunk, std::string_view data) {
  const std::lock_guard lock(mutex_);
  if (here_[chunk] != 0) return;
  if (data_ == nullptr) data_ = std::make_unique_for_overwrite<std::byte[]>(total_);
  std::ranges::copy(std::as_bytes(std::span(data)), data_.get() + chunk * kChunkBytes);
  here_[chunk] = 1;
  ++n_here_;
}

std::vector<std::uint32_t> Upload::missing() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint32_t> chunks;
  for (std::size_t i = 0; i < here_.size(); ++i) {
    if (here_[i] == 0) chunks.push_back(static_cast<std::uint32_t>(i));
  }
  return chunks;
}

bool Upload::complete() const {
  const std::lock_guard lock(mutex_);
  return n_here_ == here_.size();
}

}  // namespace pride::coord
