// DeviceSpace: a device as a space for methods. It collects their kernel calls as lists of jobs,
// and has device memory for the words of frames.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "device/batches.h"
#include "device/device.h"
#include "kernels/space.h"

namespace pride {

class DeviceSpace final : public Space {
 public:
  explicit DeviceSpace(std::shared_ptr<Device> device);
  ~DeviceSpace() override;

  bool is_host() const noexcept override { return false; }
  std::shared_ptr<float[]> zeros(std::size_t n) override;
  std::shared_ptr<float[]> room(std::size_t n) override;
  std::shared_ptr<std::byte[]> frame(std::size_t bytes) override;
  void read_bytes(const void* from, std::span<std::byte> to) override;
  void write_bytes(std::span<const std::byte> from, void* to) override;

  void stage_block(std::span<std::byte> block) override;
  void upload_block(std::span<const std::byte> block) override;
  std::size_t scratch_bytes() const noexcept override;

  void call(const std::function<void(void* stream)>& body) override;
  void begin_frames() override;
  Event record() override;
  void wait(Event event) override { device_->wait(event); }
  void after(void* stream) override;
  void before(void* stream) override;

 private:
  // A block of frames in the host's memory, and its copy on the device.
  struct Copied {
    std::span<std::byte> block;
    std::byte* copy;
  };
  const Copied* block_of(std::span<const std::byte> frame) const;
  void queue(const kernels::Call& call) override;
  void set_bytes(std::span<std::byte> words, std::byte value) override;
  const std::byte* upload_bytes(std::span<const std::byte> frame) override;
  std::byte* stage_bytes(std::span<std::byte> frame) override;
  void send_bytes(const void* staged, std::span<std::byte> frame) override;
  void flush();
  void* scratch(std::size_t bytes);

  struct Kept;

  std::shared_ptr<Device> device_;
  std::shared_ptr<Kept> kept_;  // shared: floats may outlive this
  device::Batches batches_;
  // copies to frames that follow the batches
  struct Sent {
    std::span<std::byte> frame;
    const void* staged;
  };
  std::vector<Sent> sent_;
  std::vector<Copied> copied_;
  std::optional<void*> behind_;  // the caller's stream, if the queue does not wait for it yet
  // memory for the words of frames, in blocks that are filled in order
  struct Block {
    std::shared_ptr<std::byte[]> memory;
    std::size_t bytes = 0;
  };
  std::vector<Block> blocks_;
  std::size_t block_ = 0, used_ = 0;
};

}  // namespace pride
