// Gpu: the GPU that holds all of a module's parameters, as torch's device and as pride's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <memory>
#include <string>

#include "pride/optimizer.h"

namespace pride {

// Of torch's devices that are GPUs of CUDA. Tests set it to kCPU, with a driver of their own.
at::DeviceType& gpu_type() noexcept;

// Torch's streams and pride's wait for each other by torch's generic events, so that it compiles
// with a libtorch that has no CUDA, and needs no headers of CUDA with one that has.
class Gpu {
 public:
  // Throws InvalidArgument as cuda_device() does.
  explicit Gpu(const at::Device& place);

  const at::Device& place() const noexcept { return place_; }
  std::string name() const;  // "cuda:0 (NVIDIA H100 80GB HBM3)"

  // The method of these options is to run here, with such products of matrices.
  void set(OptimizerOptions& options, at::ScalarType products) const;

  // The optimizer's queue goes on after what torch's current stream has now; and that stream after
  // what the queue has now.
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
