// Aligned, zeroed storage. Large buffers are advised as huge pages: fewer TLB misses in the
// kernels.
// SPDX-License-Identifier: Apache-2.0
#include "pride/flat_buffer.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace pride {
namespace {
constexpr std::size_t kHugePage = std::size_t{2} << 20;
}

FlatBuffer::FlatBuffer(std::size_t n) : n_(n) {
  if (n == 0) return;
  const bool large = n * sizeof(float) >= 2 * kHugePage;
  const std::size_t alignment = large ? kHugePage : 64;
  const std::size_t bytes = (n * sizeof(float) + alignment - 1) / alignment * alignment;
  void* raw = std::aligned_alloc(alignment, bytes);
  if (raw == nullptr) throw std::bad_alloc();
#ifdef __linux__
  if (large) madvise(raw, bytes, MADV_HUGEPAGE);  // advice only: a failure changes nothing
#endif
  data_.reset(static_cast<float*>(raw), [](float* p) { std::free(p); });
  std::fill_n(data_.get(), n, 0.0f);
}

FlatBuffer FlatBuffer::alias() const {
  FlatBuffer other;
  other.data_ = data_;
  other.n_ = n_;
  return other;
}

}  // namespace pride
