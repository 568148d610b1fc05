// SPDX-License-Identifier: Apache-2.0
#include "bench/device/gpu.h"

#include <algorithm>

#include "device/job_cases.h"
#include "device/timing.h"
#include "pride/device.h"
#include "pride/error.h"

namespace pride::app {
namespace {

using device::Kernel;

constexpr std::size_t kPeriod = 1 << 20;       // values that are drawn, then repeated
constexpr std::size_t kMostChecked = 100'000;  // coordinates

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

// A word of signs with a zero takes longer: its bit comes from the parameters, or from a hash.
bool has_zeros(Kernel kernel) {
  return kernel == Kernel::k_lion_signs || kernel == Kernel::k_pack_signs ||
         kernel == Kernel::k_compress;
}

// Bytes of parameters per coordinate that are read for zeros only.
double read_for_zeros(Kernel kernel) {
  return kernel == Kernel::k_lion_signs || kernel == Kernel::k_pack_signs ? 4 : 0;
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

GpuCell measured(Device& device, Kernel kernel, std::size_t n, const JobOptions& options,
                 const KernelBench& how, double copy_rate) {
  const device::u32 dtype = *options.dtype;
  GpuCell cell{.name = concat(name_of(kernel), options.zeros ? "/zeros" : ""),
               .dtype = dtype == device::kFloat32 ? "float32" : "bfloat16",
               .coords = n};
  cell.wrong_arrays = wrong_arrays(device, kernel, n, dtype);
  JobMemory memory(&device);
  const std::size_t sizes[] = {n};
  const Jobs jobs = random_jobs(kernel, sizes, options, memory);
  const double more = written_again(kernel) - (options.zeros ? 0 : read_for_zeros(kernel));
  cell.bytes = static_cast<double>(memory.bytes()) + more * static_cast<double>(n);
  cell.copy_s = cell.bytes / copy_rate;
  cell.times = times_of(device::seconds_of_calls(device, how.seconds, how.least,
                                                 [&] { device.launch(jobs.launch(kernel)); }));
  return cell;
}

}  // namespace

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
      for (const device::u32 dtype : {device::kFloat32, device::kBFloat16}) {
        if (dtype == device::kBFloat16 && !reads_bfloat16(kernel)) continue;
        JobOptions options{.period = kPeriod, .dtype = dtype, .zeros = false};
        done(measured(device, kernel, n, options, how, copy_rate));
        options.zeros = true;
        if (has_zeros(kernel)) done(measured(device, kernel, n, options, how, copy_rate));
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
