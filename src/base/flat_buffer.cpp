// SPDX-License-Identifier: Apache-2.0
#include "pride/flat_buffer.h"

#include "base/memory.h"

namespace pride {

FlatBuffer::FlatBuffer(std::size_t n) : FlatBuffer(n, Memory::host()) {}
FlatBuffer::FlatBuffer(std::size_t n, Memory& memory) : n_(n) {
  if (n > 0) data_ = memory.zeros(n);
}

FlatBuffer FlatBuffer::room(std::size_t n, Memory& memory) {
  FlatBuffer buffer;
  if (n > 0) buffer.data_ = memory.room(n);
  buffer.n_ = n;
  return buffer;
}

FlatBuffer FlatBuffer::alias() const {
  FlatBuffer other;
  other.data_ = data_;
  other.n_ = n_;
  return other;
}

}  // namespace pride
