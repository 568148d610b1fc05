// Random jobs for every kernel, made twice with the same bits: for the host and for a device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "device/device.h"

namespace pride {

// The arrays of jobs, on the host or on a device, each followed by guard bytes.
class JobMemory {
 public:
  explicit JobMemory(Device* device) : device_(device) {}  // null: on the host
  // All arrays in one piece of the device's memory, which has the room() of another JobMemory with
  // the same jobs. They are there after upload().
  JobMemory(Device& device, std::size_t room)
      : device_(&device), piece_(static_cast<std::byte*>(device.allocate(room))) {}
  ~JobMemory();
  JobMemory(const JobMemory&) = delete;
  JobMemory& operator=(const JobMemory&) = delete;

  // If `count` is above values.size(), repeats the values; only on a device.
  template <typename T>
  T* array(std::span<const T> values, std::size_t count = 0) {
    auto* const memory = static_cast<T*>(add(std::as_bytes(values), count * sizeof(T)));
    blocks_.back()->floats = std::is_same_v<T, float>;
    return memory;
  }
  std::size_t bytes() const { return bytes_; }  // of all arrays, without guards
  std::size_t room() const { return room_; }    // with guards and alignment
  std::size_t arrays() const { return blocks_.size(); }
  bool of_floats(std::size_t array) const { return blocks_[array]->floats; }
  void upload();

  // Waits for the device's queue and returns all bytes of all arrays, with guards.
  std::vector<std::vector<std::byte>> contents() const;

 private:
  struct Block {
    void* memory;
    std::vector<std::byte> host;  // on a device: what was copied in
    bool floats = false;
  };
  void* add(std::span<const std::byte> bytes, std::size_t whole);
  void* repeated(std::span<const std::byte> pattern, std::size_t whole);

  std::vector<std::vector<std::byte>> in_one_copy() const;

  Device* device_;
  std::byte* piece_ = nullptr;
  std::byte* pinned_ = nullptr;  // the piece on the host, from upload() on
  std::vector<std::unique_ptr<Block>> blocks_;
  std::size_t bytes_ = 0, room_ = 0;
};

struct Jobs {
  std::vector<std::byte> bytes;
  std::vector<device::u64> first{0};

  device::Launch launch(device::Kernel kernel) const {
    return {.kernel = kernel, .jobs = bytes, .first = first};
  }
};

struct JobOptions {
  std::uint32_t seed = 1;
  std::size_t period = 0;              // drawn values of an array, then repeated; 0: all are drawn
  std::optional<device::u32> dtype{};  // of gradients and parameters; null: any
  bool zeros = true;                   // one value in eight is a zero
};
// Makes a job for each size.
Jobs random_jobs(device::Kernel kernel, std::span<const std::size_t> sizes,
                 const JobOptions& options, JobMemory& memory);

// A text about the first difference of the arrays; "": none.
std::string first_difference(const std::vector<std::vector<std::byte>>& expected,
                             const std::vector<std::vector<std::byte>>& actual);

}  // namespace pride
