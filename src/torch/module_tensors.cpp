// ModuleTensors over libtorch 1.13 and 2.x. Code that depends on the version is in
// gradient_hook.cpp.
// SPDX-License-Identifier: Apache-2.0
#include "pride/torch/module_tensors.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "pride/error.h"
#include "torch/gradient_hook.h"

namespace pride {
namespace {

std::optional<DType> dtype_of(const at::Tensor& tensor) {
  const auto type = tensor.scalar_type();
  if (type == at::kFloat) return DType::kFloat32;
  if (type == at::kBFloat16) return DType::kBFloat16;
  return type == at::kHalf ? std::optional(DType::kFloat16) : std::nullopt;
}

// True if the optimizer can use the memory as it is.
bool is_row_major_on_host(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous();
}

// Row-major host memory for the same values.
at::Tensor host_memory_for(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(),
                   at::TensorOptions(tensor.scalar_type()).pinned_memory(tensor.is_cuda()));
}

void check_parameter(const NamedParameter& p) {
  PRIDE_CHECK(p.tensor.defined(), "ModuleTensors: parameter '", p.name, "' is undefined");
  PRIDE_CHECK(p.tensor.is_leaf(), "ModuleTensors: parameter '", p.name,
              "' is not a leaf of the graph, so it gets no gradient");
  PRIDE_CHECK(dtype_of(p.tensor), "ModuleTensors: parameter '", p.name, "' is ",
              p.tensor.toString(), ", expected float32, bfloat16 or float16");
  PRIDE_CHECK(p.tensor.layout() == at::kStrided && p.tensor.is_non_overlapping_and_dense(),
              "ModuleTensors: parameter '", p.name,
              "' has gaps or shared values, expected a dense tensor");
}

// trainable parameters, each tensor once under its first name
std::vector<NamedParameter> trainable(const std::vector<NamedParameter>& all) {
  PRIDE_CHECK(!all.empty(), "ModuleTensors: no parameters");
  std::vector<NamedParameter> kept;
  std::set<const void*> seen;
  for (const NamedParameter& p : all) {
    check_parameter(p);
    if (p.tensor.requires_grad() && seen.insert(p.tensor.unsafeGetTensorImpl()).second) {
      kept.push_back(p);
    }
  }
  PRIDE_CHECK(!kept.empty(), "ModuleTensors: none of ", all.size(), " parameters needs a gradient");
  return kept;
}

Layout make_layout(const std::vector<NamedParameter>& parameters) {
  std::vector<TensorSpec> specs;
  for (const NamedParameter& p : parameters) {
    specs.push_back({p.name, p.tensor.sizes().vec(), p.group});
  }
  return Layout(std::move(specs));
}

}  // namespace

struct ModuleTensors::Impl {
  // One parameter, and what is kept about it.
  struct Entry {
    NamedParameter parameter;
    at::Device device;
    at::ScalarType dtype;
    at::Tensor host = {};             // copy of a parameter that is not row-major on the host
    at::Tensor grad = {};             // what the optimizer reads
    std::shared_ptr<void> hook = {};  // lives as long as the parameter's accumulator
    bool handed_over = false;         // to the optimizer, in this step
  };

  explicit Impl(const std::vector<NamedParameter>& list) : layout(make_layout(list)) {
    for (const NamedParameter& p : list) {
      entries.push_back({p, p.tensor.device(), p.tensor.scalar_type()});
    }
    for (std::size_t i = 0; i < entries.size(); ++i) {
      entries[i].hook = on_gradient(entries[i].parameter.tensor, [this, i] {
        if (overlapped != nullptr && entries[i].device.is_cpu()) hand_over(i, *overlapped);
      });
    }
  }
  ~Impl() {
    for (const Entry& e : entries) forget_gradient(e.hook);
  }

  // Where the parameter lies now, in host memory, or a copy.
  Tensor parameter(std::size_t i) {
    Entry& entry = entries[i];
    const at::Tensor& now = entry.parameter.tensor;
    const TensorSlot& slot = layout.tensors()[i];
    PRIDE_CHECK(now.sizes() == slot.spec.shape && now.scalar_type() == entry.dtype &&
                    now.device() == entry.device,
                "ModuleTensors: parameter '", slot.spec.name, "' is ", now.scalar_type(), " ",
                now.sizes(), " on ", now.device(), " now and was ", entry.dtype, " ",
                at::IntArrayRef(slot.spec.shape), " on ", entry.device, " before");
    check_parameter(entry.parameter);
    if (is_row_major_on_host(now)) return {now.data_ptr(), slot.n, *dtype_of(now)};
    if (!entry.host.defined()) entry.host = host_memory_for(now);
    entry.host.copy_(now);
    return {entry.host.data_ptr(), slot.n, *dtype_of(now)};
  }

  void copy_back() {
    const c10::NoGradGuard no_grad;
    for (Entry& entry : entries) {
      at::Tensor& now = entry.parameter.tensor;
      if (!is_row_major_on_host(now)) now.copy_(entry.host);
    }
  }

  // The gradient where it lies, or a copy; kept until it is released.
  static ConstTensor gradient(Entry& entry) {
    const c10::NoGradGuard no_grad;
    at::Tensor& grad = entry.grad = entry.parameter.tensor.grad();
    if (!grad.defined()) return {};
    if (grad.layout() != at::kStrided) grad = grad.to_dense();
    PRIDE_CHECK(dtype_of(grad), "ModuleTensors: the gradient of '", entry.parameter.name, "' is ",
                grad.toString(), ", expected float32, bfloat16 or float16");
    if (!is_row_major_on_host(grad)) grad = host_memory_for(grad).copy_(grad);
    return {grad.data_ptr(), static_cast<std::size_t>(grad.numel()), *dtype_of(grad)};
  }

  void hand_over(std::size_t i, Optimizer& optimizer) {
    Entry& entry = entries[i];
    at::Tensor before = std::exchange(entry.grad, {});
    try {
      optimizer.gradient_ready(i, gradient(entry));
      entry.handed_over = true;
    } catch (...) {
      if (before.defined()) entry.grad = std::move(before);  // the optimizer may read it
      throw;
    }
  }

  void release_gradients() {
    for (Entry& entry : entries) entry.grad.reset();
    grads.clear();
  }

  Layout layout;
  std::vector<Entry> entries;  // by tensor
  std::vector<Tensor> params;
  std::vector<ConstTensor> grads;
  Optimizer* overlapped = nullptr;  // set between begin_step and finish_step
};

ModuleTensors::ModuleTensors(std::vector<NamedParameter> parameters)
    : impl_(std::make_unique<Impl>(trainable(parameters))) {}

ModuleTensors::~ModuleTensors() = default;

const Layout& ModuleTensors::layout() const noexcept { return impl_->layout; }

std::span<const Tensor> ModuleTensors::parameters() {
  const c10::NoGradGuard no_grad;
  impl_->params.clear();
  for (std::size_t i = 0; i < impl_->entries.size(); ++i) {
    impl_->params.push_back(impl_->parameter(i));
  }
  return impl_->params;
}

void ModuleTensors::change(const std::function<void(std::span<const Tensor>)>& body) {
  body(parameters());
  impl_->copy_back();
}

std::span<const ConstTensor> ModuleTensors::gradients() {
  impl_->grads.clear();
  for (Impl::Entry& entry : impl_->entries) impl_->grads.push_back(impl_->gradient(entry));
  return impl_->grads;
}

void ModuleTensors::zero_grad() {
  impl_->release_gradients();
  for (Impl::Entry& entry : impl_->entries) entry.parameter.tensor.mutable_grad().reset();
}

void ModuleTensors::broadcast(Optimizer& optimizer) {
  change([&](std::span<const Tensor> params) { optimizer.broadcast(params); });
}

void ModuleTensors::add(Optimizer& optimizer, std::vector<NamedParameter> parameters,
                        std::vector<ParamGroup> groups) {
  PRIDE_CHECK(impl_->overlapped == nullptr, "ModuleTensors: add() in the middle of a step");
  const std::size_t n = impl_->entries.size(), more = parameters.size();
  std::unique_ptr<Impl> next;
  std::vector<TensorSpec> specs;
  try {
    PRIDE_CHECK(optimizer.layout().digest() == impl_->layout.digest(),
                "ModuleTensors: add(): the optimizer was not made with this module's layout");
    std::vector<NamedParameter> all;
    for (const Impl::Entry& entry : impl_->entries) all.push_back(entry.parameter);
    std::ranges::move(parameters, std::back_inserter(all));
    next = std::make_unique<Impl>(trainable(all));
    PRIDE_CHECK(next->entries.size() == n + more, "ModuleTensors: add(): of ", n,
                " parameters and ", more, " more, ", n + more - next->entries.size(),
                " are there twice or need no gradient");
    for (std::size_t i = n; i < n + more; ++i) specs.push_back(next->layout.tensors()[i].spec);
  } catch (const InvalidArgument&) {
    // the other ranks wait in Optimizer::add: a tensor without a name is refused there, on all
    // ranks
    try {
      optimizer.add({TensorSpec{}});
    } catch (const InvalidArgument&) {
    }
    throw;
  }
  optimizer.add(std::move(specs), std::move(groups));
  impl_ = std::move(next);
}

StepReport ModuleTensors::step(Optimizer& optimizer) {
  StepReport report;
  change([&](std::span<const Tensor> params) { report = optimizer.step(params, gradients()); });
  impl_->release_gradients();
  return report;
}

void ModuleTensors::begin_step(Optimizer& optimizer) {
  PRIDE_CHECK(impl_->overlapped == nullptr, "ModuleTensors: begin_step twice without finish_step");
  optimizer.begin_step(parameters());
  for (Impl::Entry& entry : impl_->entries) entry.handed_over = false;
  impl_->overlapped = &optimizer;
}

StepReport ModuleTensors::finish_step() {
  PRIDE_CHECK(impl_->overlapped != nullptr, "ModuleTensors: finish_step without begin_step");
  Optimizer& optimizer = *std::exchange(impl_->overlapped, nullptr);
  // what lies on a device, and gradients of earlier backwards; last tensor first, as buckets go
  for (std::size_t i = impl_->entries.size(); i-- > 0;) {
    const Impl::Entry& entry = impl_->entries[i];
    if (!entry.handed_over && entry.parameter.tensor.grad().defined())
      impl_->hand_over(i, optimizer);
  }
  const StepReport report = optimizer.finish_step();
  impl_->copy_back();
  impl_->release_gradients();
  return report;
}

}  // namespace pride
