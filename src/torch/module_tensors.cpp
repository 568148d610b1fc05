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
#include "pride/registry.h"
#include "torch/gpu.h"
#include "torch/gradient_hook.h"

namespace pride {
namespace {

std::optional<DType> dtype_of(const at::Tensor& tensor) {
  const auto type = tensor.scalar_type();
  if (type == at::kFloat) return DType::kFloat32;
  if (type == at::kBFloat16) return DType::kBFloat16;
  return type == at::kHalf ? std::optional(DType::kFloat16) : std::nullopt;
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
    specs.push_back({p.name, p.tensor.sizes().vec(), p.group, {}, p.as_matrix});
  }
  return Layout(std::move(specs));
}

}  // namespace

struct ModuleTensors::Impl {
  // One parameter and its gradient.
  struct Entry {
    NamedParameter parameter;
    at::Device device;
    at::ScalarType dtype;
    at::Tensor copy = {};             // of a parameter that the optimizer cannot read in place
    at::Tensor grad = {};             // the gradient, or the copy that the optimizer reads
    std::shared_ptr<void> hook = {};  // lives as long as the parameter's accumulator
    bool handed_over = false;         // to the optimizer, in this step
  };

  explicit Impl(const std::vector<NamedParameter>& list) : layout(make_layout(list)) {
    for (const NamedParameter& p : list) {
      entries.push_back({p, p.tensor.device(), p.tensor.scalar_type()});
    }
    for (std::size_t i = 0; i < entries.size(); ++i) {
      entries[i].hook = on_gradient(entries[i].parameter.tensor, [this, i] {
        if (overlapped != nullptr && holds(entries[i].device)) hand_over(i, *overlapped);
      });
    }
  }
  ~Impl() {
    for (const Entry& e : entries) forget_gradient(e.hook);
  }

  bool holds(const at::Device& device) const {
    return gpu ? device == gpu->place() : device.is_cpu();
  }
  // True if the optimizer can use the memory as it is.
  bool is_readable(const at::Tensor& tensor) const {
    return holds(tensor.device()) && tensor.is_contiguous();
  }
  // Row-major memory that the optimizer can use, for values of this shape and type.
  at::Tensor room_for(const at::Tensor& tensor) const {
    const at::TensorOptions options(tensor.scalar_type());
    return at::empty(tensor.sizes(),
                     gpu ? options.device(gpu->place()) : options.pinned_memory(tensor.is_cuda()));
  }
  void follow_torch() const {
    if (gpu) gpu->follow_torch();
  }
  void lead_torch() const {
    if (gpu) gpu->lead_torch();
  }

  void set_gpu(std::shared_ptr<Gpu> next) {
    gpu = std::move(next);
    for (Entry& entry : entries) entry.copy.reset();
  }
  bool any_on_gpu() const {
    return std::ranges::any_of(entries,
                               [](const Entry& e) { return e.device.type() == gpu_type(); });
  }
  std::uint64_t master_bytes() const {
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const at::ScalarType type = entries[i].dtype;
      bytes += layout.tensors()[i].n * (type == at::kFloat ? 0U : type == at::kHalf ? 4U : 2U);
    }
    return bytes;
  }
  // Makes the method run on the GPU that holds all parameters, or returns why it cannot.
  std::string go_to_gpu(OptimizerOptions& options, at::ScalarType products) {
    const at::Device place = entries.front().device;
    const bool one =
        std::ranges::all_of(entries, [&](const Entry& e) { return e.device == place; });
    if (!one || place.type() != gpu_type()) return "the parameters do not lie on one GPU";
    try {
      std::string reason = why_host_only(options.method, options.options);
      for (const ParamGroup& group : options.groups) {
        const bool other = reason.empty() && !group.method.empty();
        if (other) reason = why_host_only(group.method, group.options);
      }
      if (!reason.empty()) return reason;
      if (!opened) opened = std::make_shared<Gpu>(place);
      OptimizerOptions on_gpu = options;
      opened->set(on_gpu, products);
      check_device_memory(layout, on_gpu, master_bytes());
      options = std::move(on_gpu);
      set_gpu(opened);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }

  // The parameter where it lies now, or a copy.
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
    if (is_readable(now)) return {now.data_ptr(), slot.n, *dtype_of(now)};
    if (!entry.copy.defined()) entry.copy = room_for(now);
    entry.copy.copy_(now);
    return {entry.copy.data_ptr(), slot.n, *dtype_of(now)};
  }

  // Copies what the optimizer wrote into copies back to the parameters.
  void copy_back() {
    const c10::NoGradGuard no_grad;
    lead_torch();
    for (Entry& entry : entries) {
      at::Tensor& now = entry.parameter.tensor;
      if (!is_readable(now)) now.copy_(entry.copy);
    }
  }

  // The gradient where it lies, or a copy; kept until it is released.
  ConstTensor gradient(Entry& entry) const {
    const c10::NoGradGuard no_grad;
    at::Tensor& grad = entry.grad = entry.parameter.tensor.grad();
    if (!grad.defined()) return {};
    if (grad.layout() != at::kStrided) grad = grad.to_dense();
    PRIDE_CHECK(dtype_of(grad), "ModuleTensors: the gradient of '", entry.parameter.name, "' is ",
                grad.toString(), ", expected float32, bfloat16 or float16");
    if (!is_readable(grad)) grad = room_for(grad).copy_(grad);
    return {grad.data_ptr(), static_cast<std::size_t>(grad.numel()), *dtype_of(grad)};
  }

  void hand_over(std::size_t i, Optimizer& optimizer) {
    Entry& entry = entries[i];
    at::Tensor before = std::exchange(entry.grad, {});
    try {
      const ConstTensor grad = gradient(entry);
      follow_torch();
      optimizer.gradient_ready(i, grad);
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
  std::vector<Entry> entries;   // by tensor
  std::shared_ptr<Gpu> gpu;     // where the method runs; null: on the host
  std::shared_ptr<Gpu> opened;  // the parameters' GPU, once opened
  std::vector<Tensor> params;
  std::vector<ConstTensor> grads;
  Optimizer* overlapped = nullptr;  // set between begin_step and finish_step
};

ModuleTensors::ModuleTensors(std::vector<NamedParameter> parameters)
    : impl_(std::make_unique<Impl>(trainable(parameters))) {}

ModuleTensors::~ModuleTensors() = default;

const Layout& ModuleTensors::layout() const noexcept { return impl_->layout; }

bool ModuleTensors::is_on_device() const noexcept { return impl_->gpu != nullptr; }

std::string ModuleTensors::device_name() const { return impl_->gpu ? impl_->gpu->name() : "cpu"; }

std::string ModuleTensors::run_on(RunOn where, OptimizerOptions& options, at::ScalarType products) {
  PRIDE_CHECK(products == at::kFloat || products == at::kBFloat16,
              "ModuleTensors: run_on(): ", "products of matrices in ", products,
              ", must be Float or BFloat16");
  PRIDE_CHECK(impl_->overlapped == nullptr, "ModuleTensors: run_on() in the middle of a step");
  options.device = nullptr;
  options.stream = nullptr;
  options.orthogonalise = nullptr;
  impl_->set_gpu(nullptr);
  if (where == RunOn::kHost) return "";
  const std::string reason = impl_->go_to_gpu(options, products);
  if (where == RunOn::kDevice && !is_on_device()) {
    throw InvalidArgument("ModuleTensors: the method cannot run on a device: " + reason);
  }
  return impl_->any_on_gpu() ? reason : "";
}

std::span<const Tensor> ModuleTensors::parameters() {
  const c10::NoGradGuard no_grad;
  impl_->params.clear();
  for (std::size_t i = 0; i < impl_->entries.size(); ++i) {
    impl_->params.push_back(impl_->parameter(i));
  }
  impl_->follow_torch();
  return impl_->params;
}

void ModuleTensors::read(const std::function<void(std::span<const Tensor>)>& body) {
  body(parameters());
  impl_->lead_torch();
}

void ModuleTensors::change(const std::function<void(std::span<const Tensor>)>& body) {
  body(parameters());
  impl_->copy_back();
}

std::span<const ConstTensor> ModuleTensors::gradients() {
  impl_->grads.clear();
  for (Impl::Entry& entry : impl_->entries) impl_->grads.push_back(impl_->gradient(entry));
  impl_->follow_torch();
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
    for (std::size_t i = n; i < n + more; ++i) {
      const TensorSpec& spec = next->layout.tensors()[i].spec;
      PRIDE_CHECK(!is_on_device() || impl_->holds(next->entries[i].device),
                  "ModuleTensors: add(): '", spec.name, "' is on ", next->entries[i].device,
                  ", the method runs on ", impl_->gpu->place());
      specs.push_back(spec);
    }
  } catch (const InvalidArgument&) {
    // the other ranks wait in Optimizer::add: call it, too, with a tensor without a name, which it
    // refuses on all ranks
    try {
      optimizer.add({TensorSpec{}});
    } catch (const InvalidArgument&) {
    }
    throw;
  }
  // the optimizer keeps the addresses of these copies until the next call
  for (std::size_t i = 0; i < n; ++i) next->entries[i].copy = impl_->entries[i].copy;
  next->gpu = impl_->gpu;
  next->opened = impl_->opened;
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
  // gradients on other devices and of earlier backwards; last tensor first, the order of buckets
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
