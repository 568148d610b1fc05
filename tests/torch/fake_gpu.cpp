// SPDX-License-Identifier: Apache-2.0
#include "torch/fake_gpu.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <cstdlib>
#include <utility>

#include "device/cuda_context.h"
#include "device/library.h"
#include "torch/gpu.h"

namespace pride {
namespace {

std::atomic<int> g_followed = 0, g_led = 0;
thread_local c10::StreamId t_current = 0;

// Of the fake driver: until all work that it has is done.
void synchronize(c10::StreamId stream) {
  const cuda::PrimaryContext context(cuda::driver(), 0);
  const cuda::PrimaryContext::Current current(context);
  context.run(cuda::driver().cuStreamSynchronize, reinterpret_cast<cuda::Stream>(stream));
}

// Streams of the CPU: 0 is torch's, others are addresses of pride's. An event is what it was
// recorded on, plus one.
class Streams final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kCPU; }
  c10::Device exchangeDevice(c10::Device) const override { return c10::kCPU; }
  c10::Device getDevice() const override { return c10::kCPU; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::UNSAFE, device, t_current);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, 0);
  }
  // Work on one of pride's streams comes after what that has.
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    if (stream.id() != 0) synchronize(stream.id());
    return c10::Stream(c10::Stream::UNSAFE, stream.device(), std::exchange(t_current, stream.id()));
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    *event = reinterpret_cast<void*>(stream.id() + 1);
  }
  void block(void* event, const c10::Stream& stream) const override {
    const c10::StreamId of = reinterpret_cast<c10::StreamId>(event) - 1;
    if (of == 0 && stream.id() != 0) ++g_followed;
    if (of == 0 || stream.id() != 0) return;
    ++g_led;
    synchronize(of);
  }
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
};

std::atomic<const c10::impl::DeviceGuardImplInterface*>& registered() {
  return c10::impl::device_guard_impl_registry[static_cast<std::size_t>(c10::DeviceType::CPU)];
}

const c10::impl::DeviceGuardImplInterface* g_before = nullptr;

}  // namespace

// Both libraries are opened once a process, at the first use.
FakeGpu::FakeGpu() {
  static const Streams streams;
  setenv("PRIDE_CUDA_DRIVER", PRIDE_FAKE_CUDA, 1);
  setenv("PRIDE_NVRTC", PRIDE_FAKE_NVRTC, 1);
  setenv("PRIDE_CACHE", PRIDE_FAKE_CACHE, 1);
  setenv("FAKE_CUDA_FOREIGN", "1", 1);
  g_before = registered().exchange(&streams);
  gpu_type() = at::kCPU;
}

FakeGpu::~FakeGpu() {
  gpu_type() = at::kCUDA;
  registered() = g_before;
}

void FakeGpu::fill_up() {
  static const Library driver(PRIDE_FAKE_CUDA);
  const auto fail = reinterpret_cast<void (*)(const char*, int, int)>(driver.get("fake_cuda_fail"));
  fail("cuMemAllocAsync", cuda::kOutOfMemory, 0);
}

int FakeGpu::followed() { return g_followed; }
int FakeGpu::led() { return g_led; }

}  // namespace pride
