// Storage of a part in flight.
// SPDX-License-Identifier: Apache-2.0
#include "base/wire.h"

#include <cstdlib>
#include <new>

namespace pride {

void ByteBuffer::resize(std::size_t n_bytes) {
  if (n_bytes > capacity_) {
    const std::size_t rounded = (n_bytes + 63) / 64 * 64;
    void* raw = std::aligned_alloc(64, rounded);
    if (raw == nullptr) throw std::bad_alloc();
    data_.reset(static_cast<std::byte*>(raw));
    capacity_ = rounded;
  }
  size_ = n_bytes;
}

void ByteBuffer::Free::operator()(std::byte* p) const noexcept { std::free(p); }

std::size_t Wire::capacity_bytes() const noexcept {
  std::size_t bytes = room.capacity() + pending.capacity();
  for (const auto* list : {&up, &down}) {
    for (const ByteBuffer& b : *list) bytes += b.capacity();
  }
  return bytes;
}

}  // namespace pride
