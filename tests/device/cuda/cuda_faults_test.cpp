// CudaDevice where calls fail, the queue is held up, or the device goes first: on the fake driver
// alone.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <thread>

#include "device/cuda/machine.h"
#include "pride/comm/thread_comm.h"
#include "pride/device.h"
#include "pride/error.h"
#include "pride/optimizer.h"
#include "support/texts.h"

namespace pride {
namespace {

using device::Kernel;

std::unique_ptr<cuda::CudaDevice> fake_device(int number = 0) {
  return std::make_unique<cuda::CudaDevice>(fake().driver, number, kFakeImage);
}

void expect_nothing_left() {
  const FakeCudaState now = fake().now();
  EXPECT_EQ(now.device_blocks, 0U);
  EXPECT_EQ(now.host_blocks, 0U);
  EXPECT_EQ(now.streams, 0);
  EXPECT_EQ(now.events, 0);
  EXPECT_EQ(now.modules, 0);
  EXPECT_EQ(now.contexts, 0);
}

void launch_scale(Device& device, float* x, std::uint64_t n, float factor) {
  const device::Scale job{.x = {x, nullptr}, .n = n, .factor = factor};
  const std::array<device::u64, 2> first = {0, (n + device::kChunk - 1) / device::kChunk};
  device.launch({.kernel = Kernel::k_scale,
                 .jobs = std::as_bytes(std::span<const device::Scale>(&job, 1)),
                 .first = first});
}

TEST(CudaFaults, EveryCallThatFailsIsNamedWithItsDevice) {
  const auto device = fake_device(1);
  auto* const memory = static_cast<float*>(device->allocate(256));
  std::array<std::uint32_t, 4> host{};
  const std::vector<std::pair<const char*, std::function<void()>>> calls = {
      {"cuCtxPushCurrent", [&] { device->fill(memory, 0, 1); }},
      {"cuMemAllocAsync", [&] { device->free(device->allocate(16)); }},
      {"cuMemHostAlloc", [&] { device->free_host(device->allocate_host(16)); }},
      {"cuMemcpyHtoDAsync", [&] { device->copy_in(memory, host.data(), 16); }},
      {"cuMemcpyDtoHAsync", [&] { device->copy_out(host.data(), memory, 16); }},
      {"cuMemcpyDtoDAsync", [&] { device->copy(memory, memory, 16); }},
      {"cuMemsetD32Async", [&] { device->fill(memory, 0, 1); }},
      {"cuEventRecord", [&] { device->record(); }},
      {"cuEventSynchronize", [&] { device->wait(device->record()); }},
      {"cuStreamWaitEvent", [&] { device->after(nullptr); }},
      {"cuLaunchKernel", [&] { launch_scale(*device, memory, 1, 1); }}};
  for (const auto& [call, body] : calls) {
    fake().fail(call, 400, 0);
    const std::string error = texts::error_of<Error>(body);
    EXPECT_TRUE(error.starts_with("cuda:1 (Fake B)")) << call << ": " << error;
    EXPECT_NE(error.find(concat(call, " failed: CUDA_ERROR_INVALID_HANDLE")), std::string::npos)
        << call << ": " << error;
    EXPECT_EQ(texts::error_of<Error>(body), "") << call << ", once more";
  }
  EXPECT_NE(texts::error_of<Error>([&] {
              fake().fail("cuLaunchKernel", 400, 0);
              launch_scale(*device, memory, 1, 1);
            }).find("kernel scale: "),
            std::string::npos);
  device->free(memory);
}

TEST(CudaFaults, AFullDeviceAsksForRoomOnce) {
  for (const int pools : {1, 0}) {
    fake().machine(2, pools);
    const auto device = fake_device();
    const char* call = pools == 1 ? "cuMemAllocAsync" : "cuMemAlloc";
    int asked = 0;
    pride::set_make_room(*device, [&] { ++asked; });
    fake().fail(call, 2, 0);
    device->free(device->allocate(1 << 20));
    EXPECT_EQ(asked, 1);
    texts::expect_error<OutOfMemory>(
        [&] { device->allocate(std::size_t{1} << 41); },
        {"cuda:0 (Fake A), 2199023255552 bytes: ", call, "CUDA_ERROR_OUT_OF_MEMORY"});
    EXPECT_EQ(asked, 2);
    fake().fail(call, 400, 0);
    EXPECT_THROW(device->allocate(16), Error);
    EXPECT_EQ(asked, 2) << "another error";
    fake().fail(call, 2, 0);
    auto* const x = static_cast<float*>(device->allocate(4));
    EXPECT_EQ(asked, 3);
    fake().fail(call, 2, 0);
    launch_scale(*device, x, 1, 1);  // takes memory for jobs
    EXPECT_EQ(asked, 4);
    device->free(x);
  }
  fake().machine(2, 1);
}

TEST(CudaFaults, ADeviceThatCannotBeOpenedLeavesNothingBehind) {
  for (const char* call :
       {"cuDevicePrimaryCtxRetain", "cuCtxPushCurrent", "cuModuleLoadData", "cuModuleGetFunction",
        "cuCtxGetStreamPriorityRange", "cuStreamCreateWithPriority", "cuEventCreate"}) {
    fake().fail(call, 400, 0);
    const std::string error = texts::error_of<Error>([] { fake_device(); });
    EXPECT_NE(error.find(concat(call, " failed")), std::string::npos) << error;
    expect_nothing_left();
  }
  EXPECT_EQ(
      texts::error_of<InvalidArgument>([] { cuda::CudaDevice(fake().driver, 0, "no image"); }),
      "cuda:0 (Fake A): the driver, of CUDA 13.1, refuses the kernels: "
      "CUDA_ERROR_INVALID_IMAGE");
  expect_nothing_left();
}

TEST(CudaFaults, TheQueueHasTheHighestPriority) {
  fake_device();
  EXPECT_EQ(fake().now().priority, -5);
}

TEST(CudaFaults, ThereIsNoSuchGpu) {
  EXPECT_EQ(texts::error_of<Error>([] { fake_device(2); }), "cuda:2: this process has 2 GPUs");
  EXPECT_EQ(texts::error_of<Error>([] { fake_device(-1); }), "cuda:-1: this process has 2 GPUs");
}

TEST(CudaFaults, ADeviceEndsWhileWorkIsQueued) {
  for (const int pools : {1, 0}) {
    fake().machine(2, pools);
    std::thread later;
    std::array<float, 1000> host{};
    {
      const auto device = fake_device();
      auto* const x = static_cast<float*>(device->allocate(4000));
      auto held = std::make_unique<Held>();
      device->fill(x, 0x3F800000, 1000);
      launch_scale(*device, x, 1000, 3);
      device->copy_out(host.data(), x, 4000);
      device->record();
      if (pools == 1) device->free(x);
      later = std::thread([held = std::move(held)] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        held->release();
      });
      if (pools == 0) device->free(x);  // waits for the queue
    }
    later.join();
    EXPECT_EQ(host.back(), 3);
    expect_nothing_left();
  }
  fake().machine(2, 1);
}

// The fill is long, and the caller's stream would overtake it.
TEST(CudaFaults, TheCallersStreamFindsTheStateFilled) {
  const std::shared_ptr<cuda::CudaDevice> device = fake_device();
  run_world(1, [&](Communicator& comm) {
    constexpr std::int64_t n = 1 << 24;
    cuda::Stream caller = nullptr;
    device->call([&] { fake().driver.cuStreamCreate.function(&caller, 1); });
    Optimizer optimizer(comm, Layout({{"w", {n}}}), {.method = "dlion-vote", .device = device});
    optimizer.set_stream(caller);
    const StateBuffer state = optimizer.state_buffers().at(0);
    float last = -1;
    device->call([&] {
      const cuda::Driver& driver = fake().driver;
      const auto address = reinterpret_cast<cuda::Address>(&state.values.back());
      EXPECT_EQ(driver.cuMemcpyDtoHAsync.function(&last, address, 4, caller), 0);
      driver.cuStreamSynchronize.function(caller);
      driver.cuStreamDestroy.function(caller);
    });
    EXPECT_EQ(last, 0);
  });
}

TEST(CudaFaults, WaitingThreadsDoNotHoldUpTheCaller) {
  const auto device = fake_device();
  auto* const x = static_cast<float*>(device->allocate(4));
  Held held;
  device->fill(x, 0x3F800000, 1);
  const Device::Event event = device->record();
  std::thread waiting([&] { device->wait(event); });
  while (fake().now().waiting == 0) std::this_thread::yield();
  const int launches = fake().now().launches;
  for (int i = 0; i < 100; ++i) {  // a lock held by wait() would end this test by its time limit
    launch_scale(*device, x, 1, 2);
    device->record();
  }
  EXPECT_EQ(fake().now().launches, launches + 100);
  held.release();
  waiting.join();
  device->free(x);
}

TEST(CudaFaults, JobsOfQueuedLaunchesKeepTheirPlace) {
  // While the queue is held the ring fills up; the caller then waits for it and overwrites nothing.
  const auto device = fake_device();
  constexpr std::size_t n = 40'000;
  std::vector<float> values(n, 1);
  auto* const x = static_cast<float*>(device->allocate(4 * n));
  device->copy_in(x, values.data(), 4 * n);
  Held held;
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    held.release();
  });
  for (std::size_t i = 0; i < n; ++i) launch_scale(*device, x + i, 1, static_cast<float>(i));
  later.join();
  device->copy_out(values.data(), x, 4 * n);
  device->wait(device->record());
  for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(values[i], static_cast<float>(i)) << i;
  device->free(x);
}

TEST(CudaFaults, ThreadsShareTheQueue) {
  const auto device = fake_device();
  constexpr std::size_t n_threads = 3, n_jobs = 300;
  constexpr int n_launches = 1000;  // of some 10,000 bytes: the ring of 1 MiB is filled many times
  std::array<std::vector<float>, n_threads> values;
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < n_threads; ++t) {
    threads.emplace_back([&, t] {
      values[t].assign(n_jobs, 1 + static_cast<float>(t));
      auto* const x = static_cast<float*>(device->allocate(4 * n_jobs));
      device->copy_in(x, values[t].data(), 4 * n_jobs);
      std::vector<device::Scale> jobs(n_jobs);
      std::vector<device::u64> first{0};
      for (int i = 0; i < n_launches; ++i) {
        for (std::size_t j = 0; j < n_jobs; ++j) {
          jobs[j] = {.x = {x + j, nullptr}, .n = 1, .factor = i % 2 == 0 ? 2.0f : 0.5f};
          if (i == 0) first.push_back(j + 1);
        }
        device->after(nullptr);
        device->launch({.kernel = Kernel::k_scale,
                        .jobs = std::as_bytes(std::span<const device::Scale>(jobs)),
                        .first = first});
        device->before(nullptr);
      }
      device->copy_out(values[t].data(), x, 4 * n_jobs);
      device->wait(device->record());
      device->free(x);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t t = 0; t < n_threads; ++t) {
    for (const float x : values[t]) ASSERT_EQ(x, 1 + static_cast<float>(t));
  }
}

TEST(CudaFaults, TheCallersContextIsCurrentAgain) {
  const auto a = fake_device(0), b = fake_device(1);
  const cuda::PrimaryContext other(fake().driver, 1);
  const cuda::PrimaryContext::Current current(other);
  void* before = nullptr;
  fake().driver.cuCtxPopCurrent.function(&before);
  fake().driver.cuCtxPushCurrent.function(before);
  auto* const memory = a->allocate(16);
  a->fill(memory, 1, 4);
  EXPECT_ANY_THROW(a->call([] { throw DataError("of the body"); }));
  a->wait(a->record());
  a->free(memory);
  void* after = nullptr;
  fake().driver.cuCtxPopCurrent.function(&after);
  fake().driver.cuCtxPushCurrent.function(after);
  EXPECT_EQ(after, before);
}

TEST(CudaFaults, TheGridHasWarpsForAllChunksUpToALimit) {
  const auto device = fake_device();
  std::vector<float> values(3'000'000, 1);
  auto* const x = static_cast<float*>(device->allocate(4 * values.size()));
  device->copy_in(x, values.data(), 4 * values.size());
  for (const auto& [n, blocks] : {std::pair<std::uint64_t, unsigned>{1, 1},
                                  {8 * 256, 1},
                                  {8 * 256 + 1, 2},
                                  {3'000'000, 64}}) {  // the fake has 2 multiprocessors
    launch_scale(*device, x, n, 2);
    EXPECT_EQ(fake().now().grid, blocks) << n;
  }
  device->copy_out(values.data(), x, 4 * values.size());
  device->wait(device->record());
  EXPECT_EQ(values.back(), 2);
  device->free(x);
}

}  // namespace
}  // namespace pride
