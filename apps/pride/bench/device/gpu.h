// Times of the kernels on a GPU, compared with its own copies, and checks of their results.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/kernels/measure.h"
#include "device/device.h"
#include "pride/communicator.h"
#include "program/bench/timing.h"

namespace pride::app {

struct GpuCell {
  std::string name, dtype;  // dtype of gradients and of narrow parameters
  std::size_t coords = 0;   // of one tensor
  double bytes = 0;         // read and written in a launch
  Times times = {};
  double copy_s = 0;             // time of a copy of these bytes, at the rate of large copies
  std::size_t wrong_arrays = 0;  // bits differ from the host's, in at most 100,000 coordinates

  double bytes_per_s() const { return bytes / times.median_s; }
  double of_copy() const { return copy_s / times.median_s; }
};

// Measures the kernels that matching_rows() selects by `pattern`, at each of how.sizes: with
// float32, and with bfloat16 if they read it. Values are not 0; where zeros take longer, rows
// NAME/zeros have one in eight. Short launches are repeated without a pause; times are per launch.
// Calls `done` after each cell. Throws as matching_rows().
void bench_gpu_kernels(Device& device, const KernelBench& how, const std::string& pattern,
                       double copy_rate, const std::function<void(const GpuCell&)>& done);

// Float arrays in the memory of a GPU, zero at first.
class GpuArrays {
 public:
  explicit GpuArrays(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  const std::shared_ptr<Device>& device() const noexcept { return device_; }
  std::span<float> add(std::size_t n);
  void write(std::span<const float> from, std::span<float> to) const;
  void read(std::span<const float> from, std::span<float> to) const;
  void wait() const { device_->wait(device_->record()); }

 private:
  std::shared_ptr<Device> device_;
  std::vector<std::shared_ptr<void>> blocks_;
};

}  // namespace pride::app
