// The host's memory. Large buffers are advised as huge pages: fewer TLB misses in the kernels.
// SPDX-License-Identifier: Apache-2.0
#include "base/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
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
    return counted(std::move(memory), n);
  }
  std::shared_ptr<std::byte[]> frame(std::size_t bytes) override {
    return aligned<std::byte>(64, bytes);
  }
  void read_bytes(const void* from, std::span<std::byte> to) override {
    if (!to.empty()) std::memcpy(to.data(), from, to.size());
  }
  void write_bytes(std::span<const std::byte> from, void* to) override {
    if (!from.empty()) std::memcpy(to, from.data(), from.size());
  }
};

}  // namespace

Memory& Memory::host() {
  static HostMemory memory;
  return memory;
}

std::shared_ptr<float[]> Memory::counted(std::shared_ptr<float[]> floats, std::size_t n) {
  const std::uint64_t bytes = n * sizeof(float);
  *held_ += bytes;
  float* const at = floats.get();
  return {at, [count = held_, bytes, floats = std::move(floats)](float*) { *count -= bytes; }};
}

void Memory::read(ConstFloats from, std::span<float> to) {
  if (!from.halved()) return read_bytes(from.data, std::as_writable_bytes(to));
  if (is_host()) return from.load(0, to);
  const bool both = from.lower != nullptr;
  std::vector<std::uint16_t> upper(from.n), lower(both ? from.n : 0);
  read(from.upper, std::span(upper));
  if (both) read(from.lower, std::span(lower));
  ConstFloats(upper.data(), both ? lower.data() : nullptr, from.n).load(0, to);
}

void Memory::write(std::span<const float> from, Floats to) {
  if (!to.halved()) return write_bytes(std::as_bytes(from), to.data);
  if (is_host()) return to.store(0, from);
  const bool both = to.lower != nullptr;
  std::vector<std::uint16_t> upper(from.size()), lower(both ? from.size() : 0);
  Floats(upper.data(), both ? lower.data() : nullptr, from.size()).store(0, from);
  write_bytes(std::as_bytes(std::span(upper)), to.upper);
  if (both) write_bytes(std::as_bytes(std::span(lower)), to.lower);
}

std::span<const float> on_host(Memory& memory, ConstFloats values, std::vector<float>& room) {
  if (memory.is_host() && !values.halved()) return {values.data, values.n};
  room.resize(values.n);
  memory.read(values, room);
  return room;
}

}  // namespace pride
