// Device: memory of its own and one queue of work that runs in order. device_space.h makes a space
// for methods of it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "device/bodies.h"

namespace pride {

namespace device {

enum class Kernel : std::uint8_t {
#define PRIDE_KERNEL(name, Job) k_##name,
  PRIDE_KERNELS
#undef PRIDE_KERNEL
};
inline constexpr std::size_t kKernels = 0
#define PRIDE_KERNEL(name, Job) +1
    PRIDE_KERNELS
#undef PRIDE_KERNEL
    ;
const char* name_of(Kernel kernel) noexcept;    // "lion_signs"
std::size_t job_bytes(Kernel kernel) noexcept;  // size of its job

// The jobs of one launch: `first[i]` is the number of the first chunk of job i; the last entry, one
// more than there are jobs, is the number of all chunks. A chunk is kChunk coordinates.
struct Launch {
  Kernel kernel;
  std::span<const std::byte> jobs;  // as many as first.size() - 1, of job_bytes(kernel) each
  std::span<const u64> first;
};

// The same on the host, whose memory the jobs must point at.
void run_on_host(const Launch& launch);

}  // namespace device

// Calls come from the caller's thread of an optimizer, but for wait(), which any thread may call.
// All but wait() return before the work is done. Failures of the device throw Error, naming the
// call.
class Device {
 public:
  // A point of the queue: all work before it. 0 is the beginning.
  using Event = std::uint64_t;

  Device() = default;
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  virtual std::string name() const = 0;  // "cuda:0 (NVIDIA H100 80GB HBM3)"

  // What a user should read and no call failed for, since the last call of this; "" mostly.
  virtual std::string warning() { return {}; }

  // Memory of the device, aligned to 256 bytes. free() may be called while queued work uses it, and
  // then takes effect after that work.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void free(void* memory) noexcept = 0;

  // Page-locked memory of the host, aligned to 64 bytes. Nothing queued may use it when it is
  // freed.
  virtual void* allocate_host(std::size_t bytes) = 0;
  virtual void free_host(void* memory) noexcept = 0;

  // Queued. Host memory must stay as it is until the copy is done.
  virtual void copy_in(void* device, const void* host, std::size_t bytes) = 0;
  virtual void copy_out(void* host, const void* device, std::size_t bytes) = 0;
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  virtual void fill(void* device, std::uint32_t word, std::size_t words) = 0;
  virtual void launch(const device::Launch& launch) = 0;  // the spans are copied at once

  // Queued: a function of the caller's that queues work of its own on stream(), as a product of
  // matrices; on a device without streams it runs in its turn, and may use the device's memory.
  virtual void call(const std::function<void()>& body) = 0;
  virtual void* stream() const noexcept = 0;  // a CUstream, or null

  virtual Event record() = 0;
  virtual void wait(Event event) = 0;

  // after: the queue waits for the work that is now in the caller's stream. before: that stream
  // waits for the work that is now in the queue. A device without streams does nothing.
  virtual void after(void* stream) = 0;
  virtual void before(void* stream) = 0;
};

}  // namespace pride
