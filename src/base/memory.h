// Memory of tensors, state and frames: the host's, or a device's, which the host accesses only
// through this class.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/floats.h"

namespace pride {

class Memory {
 public:
  virtual ~Memory() = default;
  static Memory& host();

  virtual bool is_host() const noexcept = 0;

  // n floats of 0, aligned to 64 bytes. They are counted in held().
  virtual std::shared_ptr<float[]> zeros(std::size_t n) = 0;
  // The same with any content, for temporary values. A device keeps what is freed for the next.
  virtual std::shared_ptr<float[]> room(std::size_t n) { return zeros(n); }

  // Host memory for frames, aligned to 64 bytes, for copies from and to a device.
  virtual std::shared_ptr<std::byte[]> frame(std::size_t bytes) = 0;

  // Copy from this memory to the host's, and back, after all queued work. Only between steps.
  virtual void read_bytes(const void* from, std::span<std::byte> to) = 0;
  virtual void write_bytes(std::span<const std::byte> from, void* to) = 0;
  template <typename T>
  void read(const T* from, std::span<T> to) {
    read_bytes(from, std::as_writable_bytes(to));
  }
  void read(ConstFloats from, std::span<float> to);
  void write(std::span<const float> from, Floats to);

  // Bytes from zeros() and room() that are not freed yet.
  std::uint64_t held() const noexcept { return *held_; }

 protected:
  std::shared_ptr<float[]> counted(std::shared_ptr<float[]> floats, std::size_t n);

 private:
  using Count = std::atomic<std::uint64_t>;
  std::shared_ptr<Count> held_ = std::make_shared<Count>(0);  // shared: floats may outlive this
};

// The values in host memory: in place, or copied to `room`.
std::span<const float> on_host(Memory& memory, ConstFloats values, std::vector<float>& room);

}  // namespace pride
