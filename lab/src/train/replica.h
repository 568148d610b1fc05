// A worker's own copy of the model, and local clipping of its gradient.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pride/communicator.h"
#include "pride/torch/module_tensors.h"
#include "pride/train/model.h"
#include "pride/train/plan.h"

namespace pride::train {

// "cpu", or "cuda": the GPU of that index, modulo the number of visible GPUs.
// Throws InvalidArgument if this libtorch has no such device.
at::Device device_of(const std::string& name, int index = 0);

// A rank's device: the ranks of a machine share its GPUs. Collective with --device cuda.
at::Device device_of(const TrainOptions& options, Communicator& comm);

// Initialised from the plan's seed, on the device, in the plan's dtype.
std::unique_ptr<Model> make_model(const TrainPlan& plan, const at::Device& device);

// The value of --run-on.
RunOn run_on_of(const TrainOptions& options);

// The arguments of ModuleTensors; groups by layout_of().
std::vector<NamedParameter> named_parameters(const Model& model, const TrainOptions& options = {});

// 2-norm of all tensors together, summed in double in one fixed order. REQUIRES: host memory.
double norm(std::span<const ConstTensor> tensors);

// The same for a model's gradients, wherever they lie, by torch's sums in double.
double gradient_norm(const Model& model);

// Local clipping: limit / norm if the norm is above `limit`, else 1. If the norm is not finite, the
// factor is 1, and the optimizer names the tensor.
float clip_factor(double norm, double limit);

}  // namespace pride::train
