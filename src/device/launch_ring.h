// Room for the jobs of launches: page-locked memory of the host, and its copy on the device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>

#include "device/device.h"

namespace pride::cuda {

// The memory has four parts, used in turn. A part is reused once the device has done the work that
// was queued while the part was in use.
class LaunchRing {
 public:
  explicit LaunchRing(Device& device, std::size_t part_bytes)
      : device_(device), size_(part_bytes) {}
  ~LaunchRing();  // REQUIRES: nothing queued uses it
  LaunchRing(const LaunchRing&) = delete;
  LaunchRing& operator=(const LaunchRing&) = delete;

  struct Room {
    std::byte *host, *device;
  };
  // Aligned to 256 bytes. May wait; enlarges parts if needed. The caller queues the copy and the
  // work that uses it before the next call.
  Room take(std::size_t bytes);

 private:
  void allocate(std::size_t part_bytes);
  void release() noexcept;
  void next_part();

  static constexpr std::size_t kParts = 4;
  Device& device_;
  std::size_t size_;                          // of a part
  std::size_t part_ = 0;                      // in use
  std::size_t used_ = 0;                      // bytes of that part
  std::array<Device::Event, kParts> left_{};  // for each part: when it was left
  std::byte *host_ = nullptr, *on_device_ = nullptr;
};

}  // namespace pride::cuda
