// A GPU of CUDA as a Device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "device/cuda_context.h"
#include "device/cuda_events.h"
#include "device/device.h"
#include "device/launch_ring.h"

namespace pride::cuda {

// A side stream of the GPU's primary context, which optimizers share. Every call makes that context
// current in its thread and restores the previous one. The null stream is the legacy default
// stream.
class CudaDevice final : public Device {
 public:
  // `image`: the kernels as a cubin or PTX. Throws InvalidArgument if there is no such GPU, or if
  // the driver refuses the image.
  CudaDevice(const Driver& driver, int number, const std::string& image);
  ~CudaDevice() override;  // waits for the queue

  std::string name() const override { return context_.name(); }
  void* allocate(std::size_t bytes) override;
  void free(void* memory) noexcept override;
  void* allocate_host(std::size_t bytes) override;
  void free_host(void* memory) noexcept override;
  void copy_in(void* device, const void* host, std::size_t bytes) override;
  void copy_out(void* host, const void* device, std::size_t bytes) override;
  void copy(void* to, const void* from, std::size_t bytes) override;
  void fill(void* device, std::uint32_t word, std::size_t words) override;
  void launch(const device::Launch& launch) override;
  void call(const std::function<void()>& body) override;
  void* stream() const noexcept override { return stream_; }
  Event record() override;
  void wait(Event event) override;
  void after(void* stream) override;
  void before(void* stream) override;

  void set_make_room(std::function<void()> make_room) override {
    make_room_ = std::move(make_room);
  }
  std::string warning() override {
    const std::lock_guard lock(mutex_);
    return std::exchange(warning_, {});
  }
  void set_warning(std::string text) { warning_ = std::move(text); }
  std::size_t events() { return marks_->events(); }

 private:
  void open(const std::string& image);
  void load(const std::string& image);
  void create_stream();
  void close() noexcept;
  void join(Stream from, Stream to);
  Result allocate(Address& address, std::size_t bytes);

  PrimaryContext context_;
  Module module_ = nullptr;
  Stream stream_ = nullptr;
  std::array<Function, device::kKernels> kernels_{};
  std::optional<StreamMarks> marks_;  // has its own lock
  std::function<void()> make_room_;
  // Calls of the driver need no lock. This one guards the rest, from the first use in a call to the
  // last: a launch's room in the ring until the kernel is queued, and the two halves of a join.
  std::mutex mutex_;
  std::optional<LaunchRing> ring_;
  EventHandle join_event_ = nullptr;
  std::string warning_;
};

// As pride::cuda_device(). `check`: its kernels must have given the host's bits on this chip.
std::shared_ptr<Device> open_device(int number, bool check);

}  // namespace pride::cuda
