// Gpu: the GPU that holds all of a module's parameters, as torch's device and as pride's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <memory>
#include <string>

#include "pride/optimizer.h"

namespace pride {

// Torch's type of device that counts as a GPU: CUDA. Tests set it to kCPU, with their own driver.
at::DeviceType& gpu_type() noexcept;

// Torch's streams and pride's wait for each other by torch's generic events. So this compiles with
// a libtorch without CUDA, and without CUDA's headers.
class Gpu {
 public:
  // Throws InvalidArgument as cuda_device() does.
  explicit Gpu(const at::Device& place);

  const at::Device& place() const noexcept { return place_; }
  std::string name() const;  // "cuda:0 (NVIDIA H100 80GB HBM3)"

  // Sets the options so that the method runs on this GPU, with matrix products in this type.
  void set(OptimizerOptions& options, at::ScalarType products) const;

  // follow_torch(): the optimizer's queue waits for the present work of torch's current stream.
  // lead_torch(): that stream waits for the present work of the queue.
  void follow_torch();
  void lead_torch();

 private:
  c10::Stream current() const;
  c10::Stream queue() const;

  at::Device place_;
  std::shared_ptr<Device> device_;
  c10::Event event_;
};

}  // namespace pride
