// Times the kernels on this machine's GPU beside its own copy, and a step of one rank.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "device/cuda/job_cases.h"
#include "device/device.h"
#include "pride/device.h"
#include "pride/error.h"

namespace pride {
namespace {

using device::Kernel;

constexpr const char* kUsage =
    "usage: gpu_bench kernels|step N...    numbers of coordinates, as 1e8\n"
    "\n"
    "kernels: each kernel on one tensor of N coordinates; `of copy` is the time that its bytes "
    "take at\n"
    "the rate of a large copy on the card, by the time that it took. Below the size of the card's\n"
    "cache a kernel can be faster than that, and below 1e7 the launch is what takes the time.\n"
    "step: lion_signs, bits to the host and back, apply_signs, on N coordinates in 148 tensors.\n";
constexpr std::size_t kPeriod = 1 << 20;
constexpr int kTimes = 5;  // of which the median counts

using Clock = std::chrono::steady_clock;

// Seconds of one call among enough of them to take 20 ms; the median of kTimes.
double seconds_of(Device& device, const std::function<void()>& work) {
  const auto time = [&](std::size_t calls) {
    device.wait(device.record());
    const auto begin = Clock::now();
    for (std::size_t i = 0; i < calls; ++i) work();
    device.wait(device.record());
    return std::chrono::duration<double>(Clock::now() - begin).count() / static_cast<double>(calls);
  };
  time(3);
  const auto calls = static_cast<std::size_t>(std::clamp(0.02 / time(3), 3.0, 2000.0));
  std::vector<double> times;
  for (int i = 0; i < kTimes; ++i) times.push_back(time(calls));
  std::ranges::nth_element(times, times.begin() + kTimes / 2);
  return times[kTimes / 2];
}

// Bytes a second, those read and those written.
double copy_rate(Device& device, std::size_t bytes) {
  void* const from = device.allocate(bytes);
  void* const to = device.allocate(bytes);
  device.fill(from, 0x3F8CCCCD, bytes / 4);
  const double seconds = seconds_of(device, [&] { device.copy(to, from, bytes); });
  device.free(from);
  device.free(to);
  return 2.0 * static_cast<double>(bytes) / seconds;
}

// Bytes of a coordinate that are written to where they were read; all else is read or written once.
double written_again(Kernel kernel) {
  switch (kernel) {
    case Kernel::k_adamw:
      return 12;
    case Kernel::k_dense_lion:
    case Kernel::k_sgd_momentum:
      return 8;
    case Kernel::k_lion_signs:
    case Kernel::k_lion_blend:
    case Kernel::k_apply_signs:
    case Kernel::k_apply_counts:
    case Kernel::k_apply_packed:
    case Kernel::k_scale:
      return 4;
    default:
      return 0;
  }
}

void time_kernel(Device& device, Kernel kernel, std::size_t n, device::u32 dtype, double rate) {
  JobMemory memory(&device);
  const std::size_t sizes[] = {n};
  const JobOptions options{.period = kPeriod, .dtype = dtype};
  const Jobs jobs = random_jobs(kernel, sizes, options, memory);
  const double bytes =
      static_cast<double>(memory.bytes()) + written_again(kernel) * static_cast<double>(n);
  const double seconds = seconds_of(device, [&] { device.launch(jobs.launch(kernel)); });
  std::printf("%-14s %-9s %8.0e %10.4f ms %8.1f GB/s %7.3f of copy\n", name_of(kernel),
              dtype == device::kFloat32 ? "float32" : "bfloat16", static_cast<double>(n),
              1e3 * seconds, bytes / seconds / 1e9, bytes / rate / seconds);
}

bool has_dtypes(Kernel kernel) {
  return kernel == Kernel::k_lion_signs || kernel == Kernel::k_lion_blend ||
         kernel == Kernel::k_widen || kernel == Kernel::k_check;
}

void bench_kernels(Device& device, const std::vector<std::size_t>& sizes) {
  const std::size_t bytes = std::min(16 * std::ranges::max(sizes), std::size_t{4} << 30);
  const double rate = copy_rate(device, bytes);
  std::printf("copy of %zu bytes: %.1f GB/s, read and written\n", bytes, rate / 1e9);
  for (std::size_t k = 0; k < device::kKernels; ++k) {
    const auto kernel = static_cast<Kernel>(k);
    for (const std::size_t n : sizes) {
      time_kernel(device, kernel, n, device::kFloat32, rate);
      if (has_dtypes(kernel)) time_kernel(device, kernel, n, device::kBFloat16, rate);
    }
  }
}

// Tensors as a transformer has: one of a third, the rest large and small in turn.
std::vector<std::size_t> tensors_of(std::size_t n) {
  std::vector<std::size_t> sizes = {n / 3};
  const std::size_t pair = (n - n / 3) / 74;
  for (std::size_t i = 0; i < 73; ++i) sizes.insert(sizes.end(), {pair - pair / 1000, pair / 1000});
  sizes.push_back(n - n / 3 - 73 * pair);
  return sizes;
}

void bench_step(Device& device, std::size_t n) {
  const std::vector<std::size_t> sizes = tensors_of(n);
  const JobOptions options{.period = kPeriod, .dtype = device::kFloat32};
  JobMemory memory(&device);
  const Jobs encode = random_jobs(Kernel::k_lion_signs, sizes, options, memory);
  const Jobs apply = random_jobs(Kernel::k_apply_signs, sizes, options, memory);
  const std::size_t bytes = n / 8;
  void* const bits = device.allocate(bytes);
  void* const host = device.allocate_host(bytes);
  const double encoding =
      seconds_of(device, [&] { device.launch(encode.launch(Kernel::k_lion_signs)); });
  const double whole = seconds_of(device, [&] {
    device.launch(encode.launch(Kernel::k_lion_signs));
    device.copy_out(host, bits, bytes);
    device.wait(device.record());
    device.copy_in(bits, host, bytes);
    device.launch(apply.launch(Kernel::k_apply_signs));
  });
  std::printf("step of %.0e coordinates in %zu tensors: %.3f ms, encode %.3f ms\n",
              static_cast<double>(n), sizes.size(), 1e3 * whole, 1e3 * encoding);
  device.free(bits);
  device.free_host(host);
}

int run(const std::string& what, const std::vector<std::size_t>& sizes) {
  std::shared_ptr<Device> device;
  try {
    device = cuda_device(0);
  } catch (const InvalidArgument& e) {
    std::printf("no GPU here: %s\n", e.what());
    return 77;
  }
  std::printf("%s\n", device->name().c_str());
  if (what == "kernels") bench_kernels(*device, sizes);
  if (what == "step") {
    for (const std::size_t n : sizes) bench_step(*device, n);
  }
  return 0;
}

}  // namespace
}  // namespace pride

int main(int count, char** arguments) try {
  const std::string what = count > 1 ? arguments[1] : "";
  std::vector<std::size_t> sizes;
  for (int i = 2; i < count; ++i) {
    const double n = std::strtod(arguments[i], nullptr);
    if (n >= 1e5 && n < 1e12) sizes.push_back(static_cast<std::size_t>(n));
  }
  if ((what == "kernels" || what == "step") && !sizes.empty()) return pride::run(what, sizes);
  std::fputs(pride::kUsage, what == "--help" ? stdout : stderr);
  return what == "--help" ? 0 : 2;
} catch (const std::exception& e) {
  std::fprintf(stderr, "gpu_bench: error: %s\n", e.what());
  return 1;
}
