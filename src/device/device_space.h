// DeviceSpace: a device as a space of methods: their kernel calls as lists of jobs, and memory of
// the device for the words of frames.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "device/device.h"
#include "kernels/space.h"

namespace pride {

class DeviceSpace final : public Space {
 public:
  explicit DeviceSpace(std::shared_ptr<Device> device);
  ~DeviceSpace() override;

  bool is_host() const noexcept override { return false; }
  std::shared_ptr<float[]> zeros(std::size_t n) override;
  std::shared_ptr<std::byte[]> frame(std::size_t bytes) override;
  void read(const float* from, std::span<float> to) override;
  void write(std::span<const float> from, float* to) override;

  std::span<std::uint64_t> stage(std::span<std::uint64_t> frame) override;
  void send(std::span<const std::uint64_t> staged, std::span<std::uint64_t> frame) override;
  std::uint32_t* watch(std::uint32_t& word) override;
  void report(const std::uint32_t* watched, std::uint32_t& word) override;

  void clear(std::span<std::uint64_t> words) override;
  void lion_sign_update(const Values& g, const kernels::Blend& blend, kernels::HashWords zeros,
                        std::span<float> m, std::span<std::uint64_t> bits,
                        FaultSlot fault) override;
  void apply_signs(std::span<const std::uint64_t> bits, kernels::Step step,
                   std::span<float> x) override;
  void apply_ternary(std::span<const std::uint64_t> positive,
                     std::span<const std::uint64_t> nonzero, kernels::Step step,
                     std::span<float> x) override;
  void apply_counts(std::span<const std::uint64_t> planes, std::size_t n_planes,
                    std::size_t plane_stride, int present, int world, kernels::Step step,
                    std::span<float> x) override;
  void apply_packed_counts(std::span<const std::uint32_t> packed, kernels::Radix radix,
                           std::size_t first_word, int present, int world, kernels::Step step,
                           std::span<float> x) override;
  void apply_decay(float decay, std::span<float> x) override;
  void adopt(const void* values, DType dtype, std::span<float> master) override;
  void publish(std::span<const float> master, DType dtype, void* values) override;

  void barrier() override;
  void begin_frames() override;
  Event record() override;
  void wait(Event event) override { device_->wait(event); }
  void after(void* stream) override;
  void before(void* stream) override;

 private:
  // Calls of one kernel that wait for a barrier.
  struct Batch {
    device::Kernel kernel;
    std::vector<std::byte> jobs;
    std::vector<device::u64> first;
  };
  const std::byte* bring_bytes(std::span<const std::byte> frame) override;
  template <typename Job>
  void add(device::Kernel kernel, const Job& job);
  void* scratch(std::size_t bytes);

  std::shared_ptr<Device> device_;
  std::vector<Batch> batches_;
  std::size_t n_batches_ = 0;  // in use; the others keep their memory
  // memory for the words of frames, in blocks that are used from the first on
  struct Block {
    std::shared_ptr<std::byte[]> memory;
    std::size_t bytes = 0;
  };
  std::vector<Block> blocks_;
  std::size_t block_ = 0, used_ = 0;
};

}  // namespace pride
