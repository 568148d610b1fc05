// Storage of a bucket in flight.
// SPDX-License-Identifier: Apache-2.0
#include "pride/wire.h"

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

Wire& Wire::extra(std::size_t k) {
  while (extras_.size() <= k) extras_.push_back(std::make_unique<Wire>());
  return *extras_[k];
}

std::size_t Wire::capacity_bytes() const noexcept {
  std::size_t bytes = dense_bf16.capacity() + dense_in.capacity() + dense_mean.capacity() +
                      owner_accumulated.capacity();
  for (const auto* list : {&up, &in, &down, &host_up, &host_in}) {
    for (const ByteBuffer& b : *list) bytes += b.capacity();
  }
  for (const auto& wire : extras_) bytes += wire->capacity_bytes();
  return bytes;
}

}  // namespace pride
