// Storage of a part in flight.
// SPDX-License-Identifier: Apache-2.0
#include "base/wire.h"

#include <algorithm>

#include "base/memory.h"

namespace pride {

void ByteBuffer::resize(std::size_t n_bytes) { resize(n_bytes, Memory::host()); }

void ByteBuffer::resize(std::size_t n_bytes, Memory& frames) {
  if (n_bytes > std::max(size_, capacity_)) {
    const std::size_t rounded = (n_bytes + 63) / 64 * 64;
    data_ = frames.frame(rounded);
    capacity_ = rounded;
  }
  size_ = n_bytes;
}

void ByteBuffer::point_at(const ByteBuffer& whole, std::size_t first, std::size_t n_bytes) {
  data_ = {whole.data_, whole.data_.get() + first};
  size_ = n_bytes;
  capacity_ = 0;
}

std::size_t Wire::capacity_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const auto* b : {&up_block, &down_block, &room, &pending, &fault}) bytes += b->capacity();
  for (const auto* list : {&up, &down}) {
    for (const ByteBuffer& b : *list) bytes += b.capacity();
  }
  return bytes;
}

}  // namespace pride
