// CudaDevice: what device.h promises, on the fake driver and on a GPU where there is one. The
// oracle of kernels is the host's compilation of the same bodies.
// SPDX-License-Identifier: Apache-2.0
#include "device/cuda_device.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <thread>

#include "device/cuda/machine.h"
#include "device/job_cases.h"
#include "pride/device.h"
#include "pride/error.h"
#include "support/texts.h"

namespace pride {
namespace {

using device::Kernel;
using device::kKernels;

constexpr std::array<std::size_t, 16> kSizes = {1,   3,   31,  32,  33,   63,   64,     65,
                                                127, 255, 256, 257, 1000, 4099, 70'000, 5};

class CudaDevice : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { device_ = device_on(GetParam()); }

  Device& device() { return *device_; }
  cuda::CudaDevice& cuda() { return *device_; }
  void finish() { device().wait(device().record()); }

  std::vector<std::uint32_t> words_at(const void* memory, std::size_t n) {
    std::vector<std::uint32_t> words(n);
    device().copy_out(words.data(), memory, 4 * n);
    finish();
    return words;
  }

 private:
  std::shared_ptr<cuda::CudaDevice> device_;
};

TEST_P(CudaDevice, KernelsGiveTheHostsBits) {
  for (std::size_t k = 0; k < kKernels; ++k) {
    const auto kernel = static_cast<Kernel>(k);
    for (std::uint32_t seed = 1; seed <= 4; ++seed) {
      JobMemory host(nullptr), on_device(&device());
      const Jobs expected = random_jobs(kernel, kSizes, {.seed = seed}, host);
      const Jobs jobs = random_jobs(kernel, kSizes, {.seed = seed}, on_device);
      device::run_on_host(expected.launch(kernel));
      device().launch(jobs.launch(kernel));
      EXPECT_EQ(first_difference(host.contents(), on_device.contents()), "")
          << name_of(kernel) << ", seed " << seed;
    }
  }
}

TEST_P(CudaDevice, NoGuardStopsATimedJob) {
  constexpr std::size_t n[] = {300};
  for (const Kernel kernel :
       {Kernel::k_dense_lion, Kernel::k_sgd_momentum, Kernel::k_adamw, Kernel::k_set}) {
    for (std::uint32_t seed = 1; seed <= 12; ++seed) {
      JobMemory memory(&device());
      const Jobs jobs = random_jobs(kernel, n, {.seed = seed, .period = 100}, memory);
      const auto before = memory.contents();
      device().launch(jobs.launch(kernel));
      EXPECT_NE(before, memory.contents()) << name_of(kernel) << ", seed " << seed;
    }
  }
}

TEST_P(CudaDevice, CopiesAndFillsInTheOrderOfTheQueue) {
  auto* const memory = static_cast<std::byte*>(device().allocate(4096));
  auto* const host = static_cast<std::uint32_t*>(device().allocate_host(4096));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 256, 0U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(host) % 64, 0U);
  for (std::uint32_t i = 0; i < 1024; ++i) host[i] = i;
  device().copy_in(memory, host, 2048);
  device().fill(memory + 2048, 7, 512);
  device().copy(memory + 1024, memory, 1024);
  const auto words = words_at(memory, 1024);
  for (std::uint32_t i = 0; i < 1024; ++i) {
    EXPECT_EQ(words[i], i < 256 ? i : i < 512 ? i - 256 : 7U) << i;
  }
  device().free(memory);
  device().free_host(host);
}

TEST_P(CudaDevice, NothingToDoIsNoCall) {
  EXPECT_NO_THROW(device().copy_in(nullptr, nullptr, 0));
  EXPECT_NO_THROW(device().copy_out(nullptr, nullptr, 0));
  EXPECT_NO_THROW(device().copy(nullptr, nullptr, 0));
  EXPECT_NO_THROW(device().fill(nullptr, 1, 0));
  EXPECT_NO_THROW(device().launch({.kernel = Kernel::k_scale, .jobs = {}, .first = {}}));
  const std::array<device::u64, 1> none = {0};
  EXPECT_NO_THROW(device().launch({.kernel = Kernel::k_scale, .jobs = {}, .first = none}));
  EXPECT_NO_THROW(device().wait(0));
  device().free(nullptr);
  device().free_host(nullptr);
  void* const memory = device().allocate(0);
  EXPECT_NE(memory, nullptr);
  device().free(memory);
}

// Jobs that set one float to `value`, through scale: x = 1 * value.
Jobs one_float_jobs(float* x, float value) {
  const device::Scale job{.x = {x, nullptr}, .n = 1, .factor = value};
  Jobs jobs;
  const auto bytes = std::as_bytes(std::span(&job, 1));
  jobs.bytes.assign(bytes.begin(), bytes.end());
  jobs.first = {0, 1};
  return jobs;
}

TEST_P(CudaDevice, ManyLaunchesEachWithItsOwnJobs) {
  // about 8,000 bytes a launch: the ring of 1 MiB is filled several times
  constexpr std::size_t n_launches = 600, n_jobs = 200;
  std::vector<float> ones(n_launches * n_jobs, 1);
  auto* const x = static_cast<float*>(device().allocate(4 * ones.size()));
  device().copy_in(x, ones.data(), 4 * ones.size());
  for (std::size_t l = 0; l < n_launches; ++l) {
    Jobs jobs;
    for (std::size_t j = 0; j < n_jobs; ++j) {
      const std::size_t at = l * n_jobs + j;
      const Jobs one = one_float_jobs(x + at, static_cast<float>(at));
      jobs.bytes.insert(jobs.bytes.end(), one.bytes.begin(), one.bytes.end());
      jobs.first.push_back(j + 1);
    }
    device().launch(jobs.launch(Kernel::k_scale));
  }
  std::vector<float> result(ones.size());
  device().copy_out(result.data(), x, 4 * result.size());
  finish();
  for (std::size_t i = 0; i < result.size(); ++i) ASSERT_EQ(result[i], static_cast<float>(i)) << i;
  device().free(x);
}

TEST_P(CudaDevice, TenThousandsOfJobsInALaunch) {
  const std::vector<std::size_t> sizes(30'000, 3);
  std::vector<float> values(3 * sizes.size(), 2);
  auto* const x = static_cast<float*>(device().allocate(4 * values.size()));
  device().copy_in(x, values.data(), 4 * values.size());
  std::vector<device::Scale> scales;
  std::vector<device::u64> first{0};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    scales.push_back({.x = {x + 3 * i, nullptr}, .n = 3, .factor = static_cast<float>(i)});
    first.push_back(i + 1);
  }
  // the first launch is small: the ring grows while it is in use
  device().launch(one_float_jobs(x, 1).launch(Kernel::k_scale));
  device().launch({.kernel = Kernel::k_scale,
                   .jobs = std::as_bytes(std::span<const device::Scale>(scales)),
                   .first = first});
  device().copy_out(values.data(), x, 4 * values.size());
  finish();
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(values[i], 2 * static_cast<float>(i / 3)) << i;
  }
  device().free(x);
}

TEST_P(CudaDevice, EventsAreWaitedForFromOtherThreads) {
  constexpr int n_events = 300;
  auto* const memory = device().allocate(4);
  auto* const host = static_cast<volatile std::uint32_t*>(device().allocate_host(4 * n_events));
  std::vector<Device::Event> events;
  for (std::uint32_t i = 0; i < n_events; ++i) {
    device().fill(memory, i + 1, 1);
    device().copy_out(const_cast<std::uint32_t*>(&host[i]), memory, 4);
    events.push_back(device().record());
  }
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = t % 2; i < n_events; i += 2) {
        device().wait(events[i]);
        EXPECT_EQ(host[i], i + 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Device::Event event : events) device().wait(event);  // again
  device().free(memory);
  device().free_host(const_cast<std::uint32_t*>(host));
}

TEST_P(CudaDevice, MeasuresItsCopies) {
  const CopyRates rates = measure_copies(device(), 1 << 20, 0, 1);
  EXPECT_GT(rates.memory, 0);
  EXPECT_GT(rates.to_host, 0);
  EXPECT_GT(rates.from_host, 0);
}

TEST_P(CudaDevice, EventsOfTheDriverAreUsedAgain) {
  for (int i = 0; i < 5000; ++i) {
    const Device::Event event = device().record();
    if (i % 100 == 0) device().wait(event);
  }
  finish();
  EXPECT_LE(cuda().events(), 101U);
}

TEST_P(CudaDevice, WaitingForAnEventThatWasNotRecordedIsRefused) {
  EXPECT_THROW(device().wait(device().record() + 1), InvalidArgument);
}

TEST_P(CudaDevice, StreamsOfTheCallerAndTheQueueWaitForEachOther) {
  auto* const memory = device().allocate(1 << 20);
  const cuda::Driver& driver = GetParam() == std::string("fake") ? fake().driver : cuda::driver();
  for (std::uint32_t round = 0; round < 20; ++round) {
    void* caller = nullptr;  // the default stream, or one of its own
    device().call([&] {
      if (round % 2 == 1) {
        ASSERT_EQ(driver.cuStreamCreate.function(&caller, 1), 0);
      }
      const auto address = reinterpret_cast<cuda::Address>(memory);
      ASSERT_EQ(driver.cuMemsetD32Async.function(address, 2 * round, 1 << 18, caller), 0);
    });
    device().after(caller);
    std::vector<std::uint32_t> words(1 << 18);
    device().copy_out(words.data(), memory, 1 << 20);
    device().fill(memory, 2 * round + 1, 1 << 18);
    device().before(caller);
    std::uint32_t last = 0;
    device().call([&] {
      const auto address = reinterpret_cast<cuda::Address>(memory) + (1 << 20) - 4;
      ASSERT_EQ(driver.cuMemcpyDtoHAsync.function(&last, address, 4, caller), 0);
      ASSERT_EQ(driver.cuStreamSynchronize.function(caller), 0);
      if (caller != nullptr) {
        ASSERT_EQ(driver.cuStreamDestroy.function(caller), 0);
      }
    });
    finish();
    EXPECT_EQ(words.back(), 2 * round);
    EXPECT_EQ(last, 2 * round + 1);
  }
  device().free(memory);
}

TEST_P(CudaDevice, ACallsExceptionGoesToItsCaller) {
  EXPECT_THROW(device().call([] { throw DataError("of the body"); }), DataError);
  EXPECT_NE(device().stream(), nullptr);
  EXPECT_NO_THROW(finish());
}

TEST_P(CudaDevice, MemoryIsFreedAfterTheWorkThatUsesIt) {
  for (std::uint32_t i = 0; i < 50; ++i) {
    auto* const a = device().allocate(1 << 16);
    auto* const b = device().allocate(1 << 16);
    device().fill(a, i, 1 << 14);
    device().copy(b, a, 1 << 16);
    device().free(a);
    EXPECT_EQ(words_at(b, 1 << 14).back(), i);
    device().free(b);
  }
}

TEST_P(CudaDevice, ThereIsNotSoMuchMemory) {
  texts::expect_error<OutOfMemory>(
      [&] { device().allocate(std::size_t{1} << 46); },
      {"cuda:0 (", "70368744177664 bytes: cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY (out of memory)"});
  EXPECT_NO_THROW(finish());
}

TEST(Gpu, IsHere) {
  const std::string why = no_gpu();
  ASSERT_TRUE(why.empty() || std::getenv("PRIDE_TEST_NEEDS_GPU") == nullptr) << why;
  if (!why.empty()) GTEST_SKIP() << "no GPU here: " << why;
  EXPECT_TRUE(device_on("gpu")->name().starts_with("cuda:0 ("));
}

INSTANTIATE_TEST_SUITE_P(Machines, CudaDevice, testing::ValuesIn(machines()),
                         [](const auto& parameter) { return std::string(parameter.param); });

}  // namespace
}  // namespace pride
