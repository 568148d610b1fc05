// Memory of the fake driver: the host's, with ranges that are checked.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>

#include "device/cuda/fake_world.h"

namespace pride::fake_cuda {
namespace {

bool inside(const std::map<std::uintptr_t, std::size_t>& blocks, std::uintptr_t at,
            std::size_t bytes) {
  const auto after = blocks.upper_bound(at);
  if (after == blocks.begin()) return false;
  const auto& [begin, size] = *std::prev(after);
  return at + bytes <= begin + size;
}

// Device memory may be that of another library, which is not known here.
bool foreign() {
  static const bool allowed = std::getenv("FAKE_CUDA_FOREIGN") != nullptr;
  return allowed;
}

bool lies(std::uintptr_t at, std::size_t bytes, bool on_device) {
  return inside(world().device_blocks, at, bytes) == on_device || (on_device && foreign());
}

// A copy between ranges of which those on the device must lie in it.
int copy(const char* call, std::uintptr_t to, std::uintptr_t from, std::size_t bytes,
         bool to_device, bool from_device, void* stream) {
  const std::lock_guard lock(world().mutex);
  if (const int result = needs_context(call); result != kOk) return result;
  if (!lies(to, bytes, to_device) || !lies(from, bytes, from_device)) return kInvalidValue;
  return enqueue(stream, [=] {
    if (crashed()) return;
    auto* const words = reinterpret_cast<unsigned*>(to);
    std::memcpy(words, reinterpret_cast<void*>(from), bytes);
    const std::lock_guard inner(world().mutex);
    if (world().changes == nullptr || to_device) return;
    for (unsigned& word : std::span(words, bytes / 4)) word ^= world().changes(word) ? 1 : 0;
  });
}

int allocate(std::map<std::uintptr_t, std::size_t>& blocks, std::uintptr_t* address,
             std::size_t bytes) {
  if (bytes > std::size_t{1} << 40) return kNoMemory;
  void* const memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(memory, 0xA5, std::min(bytes, std::size_t{1} << 26));  // a GPU's memory is not zero
  *address = reinterpret_cast<std::uintptr_t>(memory);
  blocks[*address] = bytes;
  return kOk;
}

int release(std::map<std::uintptr_t, std::size_t>& blocks, std::uintptr_t address) {
  if (blocks.erase(address) == 0) return kInvalidValue;
  std::free(reinterpret_cast<void*>(address));
  return kOk;
}

}  // namespace

void release_all(std::map<std::uintptr_t, std::size_t>& blocks) {
  while (!blocks.empty()) release(blocks, blocks.begin()->first);
}

extern "C" {

int cuMemAlloc_v2(std::uintptr_t* address, std::size_t bytes) {
  const std::lock_guard lock(world().mutex);
  const int result = needs_context("cuMemAlloc");
  return result != kOk ? result : allocate(world().device_blocks, address, bytes);
}
int cuMemFree_v2(std::uintptr_t address) {
  const std::lock_guard lock(world().mutex);
  const int result = needs_context("cuMemFree");
  return result != kOk ? result : release(world().device_blocks, address);
}
int cuMemAllocAsync(std::uintptr_t* address, std::size_t bytes, void* stream) {
  const std::lock_guard lock(world().mutex);
  if (const int result = needs_context("cuMemAllocAsync"); result != kOk) return result;
  if (stream_of(stream) == nullptr) return kBadHandle;
  return allocate(world().device_blocks, address, bytes);
}
int cuMemFreeAsync(std::uintptr_t address, void* stream) {
  const std::lock_guard lock(world().mutex);
  if (const int result = needs_context("cuMemFreeAsync"); result != kOk) return result;
  return enqueue(stream, [address] {
    const std::lock_guard inner(world().mutex);
    release(world().device_blocks, address);
  });
}
int cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) {
  const std::lock_guard lock(world().mutex);
  if (const int result = needs_context("cuMemHostAlloc"); result != kOk) return result;
  std::uintptr_t address = 0;
  const int result = allocate(world().host_blocks, &address, bytes);
  *memory = reinterpret_cast<void*>(address);
  return result;
}
int cuMemFreeHost(void* memory) {
  const std::lock_guard lock(world().mutex);
  return release(world().host_blocks, reinterpret_cast<std::uintptr_t>(memory));
}

int cuMemcpyHtoDAsync_v2(std::uintptr_t to, const void* from, std::size_t bytes, void* stream) {
  return copy("cuMemcpyHtoDAsync", to, reinterpret_cast<std::uintptr_t>(from), bytes, true, false,
              stream);
}
int cuMemcpyDtoHAsync_v2(void* to, std::uintptr_t from, std::size_t bytes, void* stream) {
  return copy("cuMemcpyDtoHAsync", reinterpret_cast<std::uintptr_t>(to), from, bytes, false, true,
              stream);
}
int cuMemcpyDtoDAsync_v2(std::uintptr_t to, std::uintptr_t from, std::size_t bytes, void* stream) {
  return copy("cuMemcpyDtoDAsync", to, from, bytes, true, true, stream);
}
int cuMemsetD32Async(std::uintptr_t at, unsigned word, std::size_t words, void* stream) {
  const std::lock_guard lock(world().mutex);
  if (const int result = needs_context("cuMemsetD32Async"); result != kOk) return result;
  if (!inside(world().device_blocks, at, 4 * words)) return kInvalidValue;
  return enqueue(stream, [=] { std::fill_n(reinterpret_cast<unsigned*>(at), words, word); });
}

}  // extern "C"

}  // namespace pride::fake_cuda
