// Making a worker's model; the norm of its gradient.
// SPDX-License-Identifier: Apache-2.0
#include "train/replica.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "base/step.h"
#include "pride/error.h"
#include "train/settings/settings.h"

namespace pride::train {

at::Device device_of(const std::string& name, int index) {
  if (name == "cpu") return at::Device(at::kCPU);
  PRIDE_CHECK(at::hasCUDA(), "--device cuda: this libtorch ",
              at::Context::hasCUDART() ? "sees no CUDA device" : "was built without CUDA");
  const int count = c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount();
  return {at::kCUDA, static_cast<at::DeviceIndex>(index % count)};
}

at::Device device_of(const TrainOptions& options, Communicator& comm) {
  return device_of(options.device, options.device == "cpu" ? 0 : local_rank(comm));
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

double norm(std::span<const ConstTensor> tensors) {
  // eight running sums: the additions need not wait for each other
  std::array<double, 8> sums{};
  static_assert(GradientView::kBlock % sums.size() == 0);
  const auto square = [](double v) { return v * v; };
  const auto add = [&](std::size_t, std::span<const float> values) {
    std::size_t i = 0;
    for (; i + sums.size() <= values.size(); i += sums.size()) {
      for (std::size_t k = 0; k < sums.size(); ++k) sums[k] += square(values[i + k]);
    }
    for (std::size_t k = 0; i + k < values.size(); ++k) sums[k] += square(values[i + k]);
  };
  for (const ConstTensor& tensor : tensors) {
    if (tensor.data == nullptr) continue;
    const GradientPlace place{.data = tensor.data, .dtype = tensor.dtype};
    GradientView{.places = &place}.for_blocks(0, 0, tensor.n, add);
  }
  return std::sqrt(std::accumulate(sums.begin(), sums.end(), 0.0));
}

float clip_factor(std::span<const ConstTensor> grads, double limit) {
  const double before = norm(grads);
  return std::isfinite(before) && before > limit ? static_cast<float>(limit / before) : 1.0F;
}

}  // namespace pride::train
