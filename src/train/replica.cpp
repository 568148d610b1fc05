// Making a worker's model.
// SPDX-License-Identifier: Apache-2.0
#include "train/replica.h"

#include <ATen/ATen.h>

#include "pride/error.h"

namespace pride::train {

at::Device device_of(const TrainOptions& options) {
  if (options.device == "cpu") return at::Device(at::kCPU);
  PRIDE_CHECK(at::hasCUDA(), "--device cuda: this libtorch ",
              at::Context::hasCUDART() ? "sees no CUDA device" : "was built without CUDA");
  return at::Device(at::kCUDA);
}

std::unique_ptr<Model> make_model(const TrainPlan& plan, const at::Device& device) {
  std::unique_ptr<Model> model = plan.task->model().make();
  model->initialise(plan.options.seed);
  const auto& load = plan.task->model().load_initial;
  if (load) load(*model);
  model->move_to(device, plan.options.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat);
  return model;
}

std::vector<NamedParameter> named_parameters(const Model& model, bool decay_all) {
  std::vector<NamedParameter> named;
  for (const ModelParameter& p : model.parameters()) {
    named.push_back({.name = p.name, .tensor = p.tensor, .group = group_of(p.decay, decay_all)});
  }
  return named;
}

}  // namespace pride::train
