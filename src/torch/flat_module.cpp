// FlatModule over libtorch 1.13 and 2.x. Code that depends on the version is in gradient_hook.cpp.
// SPDX-License-Identifier: Apache-2.0
#include "pride/torch/flat_module.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "pride/error.h"
#include "pride/flat_buffer.h"
#include "torch/gradient_hook.h"

namespace pride {
namespace {

void check_parameter(const NamedParameter& p, const at::Tensor& first) {
  PRIDE_CHECK(p.tensor.defined(), "FlatModule: parameter '", p.name, "' is undefined");
  PRIDE_CHECK(p.tensor.is_leaf(), "FlatModule: parameter '", p.name,
              "' is not a leaf of the graph, so it gets no gradient");
  const auto dtype = p.tensor.scalar_type();
  PRIDE_CHECK((dtype == at::kFloat || dtype == at::kBFloat16) && p.tensor.layout() == at::kStrided,
              "FlatModule: parameter '", p.name, "' is ", p.tensor.toString(),
              ", expected a dense float32 or bfloat16 tensor");
  PRIDE_CHECK(dtype == first.scalar_type(), "FlatModule: parameter '", p.name, "' is ",
              p.tensor.toString(), ", the first one ", first.toString());
  PRIDE_CHECK(p.tensor.device() == first.device(), "FlatModule: parameter '", p.name, "' lies on ",
              p.tensor.device().str(), ", the first one on ", first.device().str());
}

// trainable parameters, each tensor once under its first name
std::vector<NamedParameter> trainable(std::vector<NamedParameter> all) {
  PRIDE_CHECK(!all.empty(), "FlatModule: no parameters");
  std::vector<NamedParameter> kept;
  std::set<const void*> seen;
  for (NamedParameter& p : all) {
    check_parameter(p, all.front().tensor);
    if (p.tensor.requires_grad() && seen.insert(p.tensor.unsafeGetTensorImpl()).second) {
      kept.push_back(p);
    }
  }
  PRIDE_CHECK(!kept.empty(), "FlatModule: none of ", all.size(), " parameters needs a gradient");
  return kept;
}

Layout make_layout(const std::vector<NamedParameter>& parameters) {
  std::vector<TensorSpec> specs;
  for (const NamedParameter& p : parameters) {
    specs.push_back({p.name, p.tensor.sizes().vec(), p.group});
  }
  return Layout(std::move(specs));
}

// Zeros in CPU memory, aligned to 64 bytes; page-locked where a GPU reads and writes them.
at::Tensor host_zeros(std::size_t n, bool pinned) {
  const auto size = static_cast<std::int64_t>(n);
  if (pinned) return at::zeros({size}, at::TensorOptions(at::kFloat).pinned_memory(true));
  const auto buffer = std::make_shared<FlatBuffer>(n);
  return at::from_blob(
      buffer->data(), {size}, [buffer](void*) {}, at::kFloat);
}

std::span<float> span_of(const at::Tensor& flat) {
  return {static_cast<float*>(flat.data_ptr()), static_cast<std::size_t>(flat.numel())};
}

// Where values cross between a GPU and the host as float32, the GPU widens and rounds them.
at::Tensor widened(const at::Tensor& tensor) {
  return tensor.is_cuda() ? tensor.to(at::kFloat) : tensor;
}

at::Tensor view_of(const at::Tensor& flat, const TensorSlot& slot) {
  return flat.narrow(0, static_cast<std::int64_t>(slot.offset), static_cast<std::int64_t>(slot.n))
      .view(slot.spec.shape);
}

}  // namespace

struct FlatModule::Impl {
  explicit Impl(std::vector<NamedParameter> list)
      : parameters(std::move(list)),
        layout(make_layout(parameters)),
        unused(std::make_unique<bool[]>(parameters.size())),
        handed_over(parameters.size()) {
    const at::Tensor& first = parameters.front().tensor;
    on_cpu = first.device().is_cpu();
    direct = on_cpu && first.scalar_type() == at::kFloat;
    host_params = host_zeros(layout.flat_size(), first.is_cuda());
    host_grads = host_zeros(layout.flat_size(), first.is_cuda());
    const auto where = at::device(first.device()).dtype(first.scalar_type());
    flat_params = direct ? host_params : at::zeros_like(host_params, where);
    flat_grads = direct ? host_grads : at::zeros_like(host_grads, where);
  }

  void adopt();
  void receive(std::size_t tensor);
  void collect_one(std::size_t tensor);
  void widen(std::size_t tensor);

  std::vector<NamedParameter> parameters;
  Layout layout;
  at::Tensor host_params, host_grads;  // float32 in CPU memory
  at::Tensor flat_params, flat_grads;  // of the parameters: the same memory, or staged
  std::vector<at::Tensor> grad_views;
  std::unique_ptr<bool[]> unused;
  std::vector<std::shared_ptr<void>> accumulators;  // a hook lives as long as its accumulator
  Optimizer* overlapped = nullptr;                  // set between begin_step and finish_step
  std::vector<bool> handed_over;                    // to the optimizer, in this step
  bool on_cpu = true;
  bool direct = true;  // float32 in CPU memory: no staging
};

// copies the values in, then points the parameters and their gradients at the flat buffers
void FlatModule::Impl::adopt() {
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor& tensor = parameters[i].tensor;
    const at::Tensor view = view_of(flat_params, layout.tensors()[i]);
    view.copy_(tensor);
    tensor.set_data(view);
    grad_views.push_back(view_of(flat_grads, layout.tensors()[i]));
    tensor.mutable_grad() = grad_views.back();
    unused[i] = true;
    accumulators.push_back(on_gradient(tensor, [this, i] { receive(i); }));
  }
}

void FlatModule::Impl::receive(std::size_t tensor) {
  unused[tensor] = false;
  if (overlapped == nullptr || !on_cpu) return;
  handed_over[tensor] = true;
  if (!direct) widen(tensor);
  overlapped->gradient_ready(tensor);
}

// one tensor's gradient into the float32 buffer
void FlatModule::Impl::widen(std::size_t tensor) {
  const c10::NoGradGuard no_grad;
  view_of(host_grads, layout.tensors()[tensor]).copy_(grad_views[tensor]);
}

void FlatModule::Impl::collect_one(std::size_t tensor) {
  at::Tensor& grad = parameters[tensor].tensor.mutable_grad();
  at::Tensor& view = grad_views[tensor];
  if (grad.defined() && grad.is_same(view)) return;
  if (!grad.defined()) {
    view.zero_();
    unused[tensor] = true;
  } else if (grad.layout() != at::kStrided || grad.data_ptr() != view.data_ptr()) {
    view.copy_(grad.layout() == at::kStrided ? grad : grad.to_dense());
    unused[tensor] = false;
  }
  grad = view;
}

FlatModule::FlatModule(std::vector<NamedParameter> parameters)
    : impl_(std::make_unique<Impl>(trainable(std::move(parameters)))) {
  impl_->adopt();
  pull();
}

FlatModule::~FlatModule() {
  for (const auto& accumulator : impl_->accumulators) forget_gradient(accumulator);
}

const Layout& FlatModule::layout() const noexcept { return impl_->layout; }
std::span<float> FlatModule::params() noexcept { return span_of(impl_->host_params); }
std::span<float> FlatModule::grads() noexcept { return span_of(impl_->host_grads); }

std::span<const bool> FlatModule::unused() const noexcept {
  return {impl_->unused.get(), impl_->parameters.size()};
}

void FlatModule::zero_grad() {
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < impl_->parameters.size(); ++i) {
    impl_->parameters[i].tensor.mutable_grad() = impl_->grad_views[i];
    impl_->unused[i] = true;
  }
  impl_->flat_grads.zero_();
}

void FlatModule::collect() {
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < impl_->parameters.size(); ++i) impl_->collect_one(i);
  if (!impl_->direct) impl_->host_grads.copy_(widened(impl_->flat_grads));
}

void FlatModule::broadcast(Optimizer& optimizer) {
  optimizer.broadcast(params());
  push();
}

void FlatModule::add(Optimizer& optimizer, std::vector<NamedParameter> parameters,
                     std::vector<ParamGroup> groups) {
  PRIDE_CHECK(impl_->overlapped == nullptr, "FlatModule: add() in the middle of a step");
  const std::size_t n = impl_->parameters.size(), more = parameters.size();
  std::unique_ptr<Impl> next;
  std::vector<TensorSpec> specs;
  try {
    PRIDE_CHECK(optimizer.layout().digest() == impl_->layout.digest(),
                "FlatModule: add(): the optimizer was not made with this module's layout");
    std::vector<NamedParameter> all = impl_->parameters;
    std::ranges::move(parameters, std::back_inserter(all));
    next = std::make_unique<Impl>(trainable(std::move(all)));
    PRIDE_CHECK(next->parameters.size() == n + more, "FlatModule: add(): of ", n,
                " parameters and ", more, " more, ", n + more - next->parameters.size(),
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

  const std::unique_ptr<Impl> before = std::exchange(impl_, std::move(next));
  for (const auto& accumulator : before->accumulators) forget_gradient(accumulator);
  impl_->adopt();
  pull();
  // in float32, where the weights themselves are narrower
  std::ranges::copy(span_of(before->host_params), params().begin());
}

StepReport FlatModule::step(Optimizer& optimizer) {
  collect();
  const StepReport report = optimizer.step(params(), grads(), unused());
  push();
  return report;
}

void FlatModule::begin_step(Optimizer& optimizer) {
  PRIDE_CHECK(impl_->overlapped == nullptr, "FlatModule: begin_step twice without finish_step");
  if (impl_->on_cpu) {  // a GPU's gradients come in finish_step, all at once
    collect();
    optimizer.begin_step(params(), grads());
  }
  impl_->handed_over.assign(impl_->parameters.size(), false);
  impl_->overlapped = &optimizer;
}

StepReport FlatModule::finish_step() {
  PRIDE_CHECK(impl_->overlapped != nullptr, "FlatModule: finish_step without begin_step");
  Optimizer& optimizer = *impl_->overlapped;
  impl_->overlapped = nullptr;
  if (!impl_->on_cpu) return step(optimizer);
  // tensors with a gradient before the last backward, and none in it
  for (std::size_t i = 0; i < impl_->parameters.size(); ++i) {
    if (!impl_->unused[i] && !impl_->handed_over[i]) optimizer.gradient_ready(i);
  }
  const StepReport report = optimizer.finish_step();
  push();
  return report;
}

void FlatModule::pull() {
  const c10::NoGradGuard no_grad;
  if (!impl_->direct) impl_->host_params.copy_(widened(impl_->flat_params));
}

void FlatModule::push() {
  const c10::NoGradGuard no_grad;
  if (impl_->direct) return;
  if (!impl_->on_cpu) {
    const bool narrow = impl_->flat_params.scalar_type() != at::kFloat;
    impl_->flat_params.copy_(narrow ? impl_->host_params.to(impl_->flat_params.device())
                                    : impl_->host_params);
    return;
  }
  auto* weights = static_cast<BFloat16*>(impl_->flat_params.data_ptr());
  to_bf16(params(), {weights, params().size()});
}

}  // namespace pride
