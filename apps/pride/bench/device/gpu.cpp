// SPDX-License-Identifier: Apache-2.0
#include "bench/device/gpu.h"

#include <algorithm>
#include <chrono>

#include "bench/device/job_cases.h"
#include "pride/device.h"
#include "pride/error.h"
#include "train/clock.h"
#include "train/settings/settings.h"

namespace pride::app {
namespace {

using device::Kernel;

constexpr std::size_t kPeriod = 1 << 20;       // values that are drawn, then repeated
constexpr std::size_t kMostChecked = 100'000;  // coordinates

// Times of one call. Calls are timed together in batches of at least kShortest seconds.
Times timed(Device& device, double seconds, int least, const std::function<void()>& work) {
  constexpr double kShortest = 0.02, kMostCalls = 2000;
  const auto time = [&](int calls) {
    device.wait(device.record());
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) work();
    device.wait(device.record());
    return seconds_since(start) / calls;
  };
  time(3);  // warms up
  const int calls = static_cast<int>(std::clamp(kShortest / time(3), 1.0, kMostCalls));
  std::vector<double> all;
  for (double total = 0; total < seconds || static_cast<int>(all.size()) < least;) {
    all.push_back(time(calls));
    total += all.back() * calls;
  }
  return times_of(std::move(all));
}

// Bytes per coordinate that are read and written in the same place; others count once.
double written_again(Kernel kernel) {
  switch (kernel) {
    case Kernel::k_adamw:
      return 12;
    case Kernel::k_dense_lion:
    case Kernel::k_sgd_momentum:
    case Kernel::k_keep_feedback:
      return 8;
    case Kernel::k_lion_signs:
    case Kernel::k_lion_blend:
    case Kernel::k_apply_signs:
    case Kernel::k_apply_counts:
    case Kernel::k_apply_packed:
    case Kernel::k_apply_scaled:
    case Kernel::k_levels:
    case Kernel::k_scale:
      return 4;
    default:
      return 0;
  }
}

bool reads_bfloat16(Kernel kernel) {
  return kernel == Kernel::k_lion_signs || kernel == Kernel::k_lion_blend ||
         kernel == Kernel::k_widen || kernel == Kernel::k_check;
}

std::size_t wrong_arrays(Device& device, Kernel kernel, std::size_t n, device::u32 dtype) {
  const std::size_t sizes[] = {std::min(n, kMostChecked)};
  const JobOptions options{.dtype = dtype};
  JobMemory here(nullptr), there(&device);
  const Jobs on_host = random_jobs(kernel, sizes, options, here);
  const Jobs on_device = random_jobs(kernel, sizes, options, there);
  device::run_on_host(on_host.launch(kernel));
  device.launch(on_device.launch(kernel));
  const auto wanted = here.contents(), got = there.contents();
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) wrong += wanted[i] != got[i] ? 1 : 0;
  return wrong;
}

GpuCell measured(Device& device, Kernel kernel, std::size_t n, device::u32 dtype,
                 const KernelBench& how, double copy_rate) {
  GpuCell cell{.name = name_of(kernel),
               .dtype = dtype == device::kFloat32 ? "float32" : "bfloat16",
               .coords = n};
  cell.wrong_arrays = wrong_arrays(device, kernel, n, dtype);
  JobMemory memory(&device);
  const std::size_t sizes[] = {n};
  const Jobs jobs = random_jobs(kernel, sizes, {.period = kPeriod, .dtype = dtype}, memory);
  cell.bytes = static_cast<double>(memory.bytes()) + written_again(kernel) * static_cast<double>(n);
  cell.copy_s = cell.bytes / copy_rate;
  cell.times = timed(device, how.seconds, how.least, [&] { device.launch(jobs.launch(kernel)); });
  return cell;
}

}  // namespace

std::shared_ptr<Device> gpu_of_rank(Communicator& comm) {
  const auto n = static_cast<int>(std::max<std::size_t>(1, cuda_report().gpus.size()));
  return cuda_device(train::local_rank(comm) % n);
}

GpuRates measure_rates(Device& device, std::size_t bytes, double seconds, int least) {
  GpuArrays arrays(std::shared_ptr<Device>(std::shared_ptr<void>(), &device));
  const std::size_t n = bytes / sizeof(float), most_of_host = std::size_t{1} << 26;
  const auto from = arrays.add(n), to = arrays.add(n);
  const std::size_t part = std::min(n, most_of_host) * sizeof(float);
  const std::shared_ptr<void> host(device.allocate_host(part),
                                   [&device](void* memory) { device.free_host(memory); });
  const auto rate = [&](std::size_t moved, const std::function<void()>& copy) {
    return static_cast<double>(moved) / timed(device, seconds, least, copy).median_s;
  };
  return {
      rate(2 * from.size_bytes(), [&] { device.copy(to.data(), from.data(), from.size_bytes()); }),
      rate(part, [&] { device.copy_out(host.get(), from.data(), part); }),
      rate(part, [&] { device.copy_in(to.data(), host.get(), part); })};
}

void bench_gpu_kernels(Device& device, const KernelBench& how, const std::string& pattern,
                       double copy_rate, const std::function<void(const GpuCell&)>& done) {
  std::vector<KernelRow> rows;
  for (std::size_t k = 0; k < device::kKernels; ++k) {
    rows.push_back({.name = name_of(static_cast<Kernel>(k))});
  }
  for (const std::size_t n : how.sizes) {
    for (const KernelRow& row : matching_rows(rows, pattern)) {
      const auto at = std::ranges::find(rows, row.name, &KernelRow::name);
      const auto kernel = static_cast<Kernel>(at - rows.begin());
      done(measured(device, kernel, n, device::kFloat32, how, copy_rate));
      if (reads_bfloat16(kernel)) {
        done(measured(device, kernel, n, device::kBFloat16, how, copy_rate));
      }
    }
  }
}

std::span<float> GpuArrays::add(std::size_t n) {
  void* const memory = device_->allocate(n * sizeof(float));
  blocks_.emplace_back(memory, [device = device_](void* block) { device->free(block); });
  device_->fill(memory, 0, n);
  return {static_cast<float*>(memory), n};
}

void GpuArrays::write(std::span<const float> from, std::span<float> to) const {
  device_->copy_in(to.data(), from.data(), from.size_bytes());
  wait();
}

void GpuArrays::read(std::span<const float> from, std::span<float> to) const {
  device_->copy_out(to.data(), from.data(), from.size_bytes());
  wait();
}

}  // namespace pride::app
