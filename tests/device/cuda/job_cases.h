// Random jobs for every kernel, made twice with the same bits: for the host and for a device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"

namespace pride {

// Arrays that jobs point at, each with guard bytes behind it: of the host, or of a device.
class JobMemory {
 public:
  explicit JobMemory(Device* device) : device_(device) {}  // null: of the host
  ~JobMemory();
  JobMemory(const JobMemory&) = delete;
  JobMemory& operator=(const JobMemory&) = delete;

  template <typename T>
  T* array(std::span<const T> values) {
    return static_cast<T*>(add(std::as_bytes(values)));
  }

  // All bytes of all arrays as they are once the device's queue is done.
  std::vector<std::vector<std::byte>> contents() const;

 private:
  struct Block {
    void* memory;
    std::vector<std::byte> host;  // on a device: what was copied in
  };
  void* add(std::span<const std::byte> bytes);

  Device* device_;
  std::vector<std::unique_ptr<Block>> blocks_;
};

struct Jobs {
  std::vector<std::byte> bytes;
  std::vector<device::u64> first{0};

  device::Launch launch(device::Kernel kernel) const {
    return {.kernel = kernel, .jobs = bytes, .first = first};
  }
};

// A job for each size.
Jobs random_jobs(device::Kernel kernel, std::span<const std::size_t> sizes, std::uint32_t seed,
                 JobMemory& memory);

// Where arrays differ first; "": nowhere.
std::string first_difference(const std::vector<std::vector<std::byte>>& expected,
                             const std::vector<std::vector<std::byte>>& actual);

}  // namespace pride
