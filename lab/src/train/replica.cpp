// Makes a worker's model; the norm of its gradient.
// SPDX-License-Identifier: Apache-2.0
#include "train/replica.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

#include "pride/error.h"
#include "program/settings.h"

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

RunOn run_on_of(const TrainOptions& options) {
  if (options.run_on == "host") return RunOn::kHost;
  return options.run_on == "device" ? RunOn::kDevice : RunOn::kAuto;
}

std::vector<NamedParameter> named_parameters(const Model& model, const TrainOptions& options) {
  std::vector<NamedParameter> named;
  const Layout layout = layout_of(model, options);
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    const ModelParameter& p = model.parameters()[t];
    named.push_back({.name = p.name, .tensor = p.tensor, .group = layout.tensors()[t].spec.group});
  }
  return named;
}

double norm(std::span<const ConstTensor> tensors) {
  // eight running sums: the additions need not wait for each other
  std::array<double, 8> sums{};
  std::array<float, 4096> widened;
  static_assert(widened.size() % sums.size() == 0);
  const auto square = [](double v) { return v * v; };
  const auto add = [&](std::span<const float> values) {
    std::size_t i = 0;
    for (; i + sums.size() <= values.size(); i += sums.size()) {
      for (std::size_t k = 0; k < sums.size(); ++k) sums[k] += square(values[i + k]);
    }
    for (std::size_t k = 0; i + k < values.size(); ++k) sums[k] += square(values[i + k]);
  };
  const auto add_narrow = [&](auto values) {
    for (; !values.empty(); values = values.subspan(std::min(widened.size(), values.size()))) {
      const auto block = values.first(std::min(widened.size(), values.size()));
      to_float(block, std::span(widened).first(block.size()));
      add(std::span(widened).first(block.size()));
    }
  };
  for (const auto& [data, n, dtype] : tensors) {
    if (data == nullptr) continue;
    if (dtype == DType::kFloat32) add({static_cast<const float*>(data), n});
    if (dtype == DType::kBFloat16) add_narrow(std::span(static_cast<const BFloat16*>(data), n));
    if (dtype == DType::kFloat16) add_narrow(std::span(static_cast<const Float16*>(data), n));
  }
  return std::sqrt(std::accumulate(sums.begin(), sums.end(), 0.0));
}

double gradient_norm(const Model& model) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> norms;  // on the device, so that item() waits only once
  for (const ModelParameter& p : model.parameters()) {
    const at::Tensor& grad = p.tensor.grad();
    if (!grad.defined()) continue;
    const at::Tensor dense = grad.layout() == at::kStrided ? grad : grad.to_dense();
    norms.push_back(at::linalg_vector_norm(dense, 2, {}, false, at::kDouble));
  }
  return norms.empty() ? 0 : at::linalg_vector_norm(at::stack(norms)).item<double>();
}

float clip_factor(double norm, double limit) {
  return std::isfinite(norm) && norm > limit ? static_cast<float>(limit / norm) : 1.0F;
}

}  // namespace pride::train
