// A worker's own copy of the model.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "pride/torch/flat_module.h"
#include "pride/train/model.h"
#include "pride/train/plan.h"

namespace pride::train {

// Throws InvalidArgument where this libtorch has no such device.
at::Device device_of(const TrainOptions& options);

// Initialised from the plan's seed, on the device, in the plan's type of number.
std::unique_ptr<Model> make_model(const TrainPlan& plan, const at::Device& device);

// What a FlatModule is made of; groups as group_of() says.
std::vector<NamedParameter> named_parameters(const Model& model, bool decay_all);

}  // namespace pride::train
