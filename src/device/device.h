// Device: memory, and one queue that runs its work in order. device_space.h makes a device a space
// for methods.
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

// The jobs of one launch. `first[i]` is the number of the first chunk of job i; one more entry is
// the number of all chunks. A chunk is kChunk coordinates.
struct Launch {
  Kernel kernel;
  std::span<const std::byte> jobs;  // first.size() - 1 jobs of job_bytes(kernel) each
  std::span<const u64> first;
};

// Runs the jobs on the host, their chunks in an order of the seed: a GPU promises none. REQUIRES:
// they point at the host's memory.
void run_on_host(const Launch& launch, u64 seed = 0);

}  // namespace device

// Optimizers share a device: each calls from one thread at a time, and its own work stays in order.
// wait() may come from any thread. All but wait() return before the work is done. If the device
// fails, they throw Error, which names the call.
class Device {
 public:
  // A point of the queue: all work before it. 0 is the beginning.
  using Event = std::uint64_t;

  Device() = default;
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  virtual std::string name() const = 0;  // "cuda:0 (NVIDIA H100 80GB HBM3)"

  // A warning for the user, once: problems with which no call failed. Usually "".
  virtual std::string warning() { return {}; }

  // Set before other calls, see pride::set_make_room(). allocate() calls it, and launch() may.
  virtual void set_make_room(std::function<void()> /*make_room*/) {}

  // Memory of the device, aligned to 256 bytes. Throws OutOfMemory. free() may be called while
  // queued work uses it, and then takes effect after that work.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void free(void* memory) noexcept = 0;

  // Page-locked memory of the host, aligned to 64 bytes. free_host() REQUIRES that no queued work
  // uses it.
  virtual void* allocate_host(std::size_t bytes) = 0;
  virtual void free_host(void* memory) noexcept = 0;

  // Queued. Host memory must not change until the copy is done.
  virtual void copy_in(void* device, const void* host, std::size_t bytes) = 0;
  virtual void copy_out(void* host, const void* device, std::size_t bytes) = 0;
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  virtual void fill(void* device, std::uint32_t word, std::size_t words) = 0;
  virtual void launch(const device::Launch& launch) = 0;  // the spans are copied at once

  // Queues the caller's work: body() adds it to stream(), for instance a matrix product. On a
  // device without streams body() is queued itself and may use the device's memory.
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
