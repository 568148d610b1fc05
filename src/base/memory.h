// Memory of tensors, state and frames: the host's, or a device's, which the host accesses only
// through this class.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace pride {

class Memory {
 public:
  virtual ~Memory() = default;
  static Memory& host();

  virtual bool is_host() const noexcept = 0;

  // n zero floats, aligned to 64 bytes.
  virtual std::shared_ptr<float[]> zeros(std::size_t n) = 0;

  // Host memory for frames, aligned to 64 bytes, for copies from and to a device.
  virtual std::shared_ptr<std::byte[]> frame(std::size_t bytes) = 0;

  // Between steps, after all queued work: copies values from this memory to the host's, and back.
  virtual void read(const float* from, std::span<float> to) = 0;
  virtual void write(std::span<const float> from, float* to) = 0;
};

// The values on the host: in place, or copied to `room`.
std::span<const float> on_host(Memory& memory, std::span<const float> values,
                               std::vector<float>& room);

}  // namespace pride
