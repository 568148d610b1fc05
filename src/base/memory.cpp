// The host's memory. Large buffers are advised as huge pages: fewer TLB misses in the kernels.
// SPDX-License-Identifier: Apache-2.0
#include "base/memory.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace pride {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

template <typename T>
std::shared_ptr<T[]> aligned(std::size_t alignment, std::size_t bytes) {
  bytes = (bytes + alignment - 1) / alignment * alignment;
  void* raw = std::aligned_alloc(alignment, bytes);
  if (raw == nullptr) throw std::bad_alloc();
#ifdef __linux__
  if (alignment == kHugePage) madvise(raw, bytes, MADV_HUGEPAGE);  // advice: may fail
#endif
  return std::shared_ptr<T[]>(static_cast<T*>(raw), [](T* p) { std::free(p); });
}

class HostMemory final : public Memory {
 public:
  bool is_host() const noexcept override { return true; }
  std::shared_ptr<float[]> zeros(std::size_t n) override {
    const std::size_t bytes = n * sizeof(float);
    auto memory = aligned<float>(bytes >= 2 * kHugePage ? kHugePage : 64, bytes);
    std::fill_n(memory.get(), n, 0.0f);
    return memory;
  }
  std::shared_ptr<std::byte[]> frame(std::size_t bytes) override {
    return aligned<std::byte>(64, bytes);
  }
  void read(const float* from, std::span<float> to) override {
    std::copy_n(from, to.size(), to.begin());
  }
  void write(std::span<const float> from, float* to) override { std::ranges::copy(from, to); }
};

}  // namespace

Memory& Memory::host() {
  static HostMemory memory;
  return memory;
}

std::span<const float> on_host(Memory& memory, std::span<const float> values,
                               std::vector<float>& room) {
  if (memory.is_host()) return values;
  room.resize(values.size());
  memory.read(values.data(), room);
  return room;
}

}  // namespace pride
