// NoDevice: host memory in the role of a device's, and work that never runs. It serves queries
// before a device exists: a method checks its options when it is constructed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <new>
#include <string>

#include "device/device.h"

namespace pride {

class NoDevice final : public Device {
 public:
  std::string name() const override { return "no device"; }
  void* allocate(std::size_t bytes) override { return ::operator new(bytes, kAligned); }
  void free(void* memory) noexcept override { ::operator delete(memory, kAligned); }
  void* allocate_host(std::size_t bytes) override { return allocate(bytes); }
  void free_host(void* memory) noexcept override { free(memory); }
  void copy_in(void* /*device*/, const void* /*host*/, std::size_t) override {}
  void copy_out(void* /*host*/, const void* /*device*/, std::size_t) override {}
  void copy(void* /*to*/, const void* /*from*/, std::size_t) override {}
  void fill(void* device, std::uint32_t word, std::size_t words) override {
    std::fill_n(static_cast<std::uint32_t*>(device), words, word);
  }
  void launch(const device::Launch& /*launch*/) override {}
  void call(const std::function<void()>& /*body*/) override {}
  void* stream() const noexcept override { return nullptr; }
  Event record() override { return 0; }
  void wait(Event /*event*/) override {}
  void after(void* /*stream*/) override {}
  void before(void* /*stream*/) override {}

 private:
  static constexpr std::align_val_t kAligned{256};
};

}  // namespace pride
