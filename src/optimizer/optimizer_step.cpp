// A step of an optimizer: the tensors as they become ready, and its end.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "optimizer/optimizer_impl.h"
#include "pride/error.h"

namespace pride {

// Where this rank's gradients lie. None: they are given one by one.
void Optimizer::Impl::set_gradients(const std::optional<Gradients>& grads) {
  place_gradients(steps(), grads);
  GradientView view{.factor = gradient_factor};
  if (!space.is_host()) view.scale = loss_scale.factor;
  if (space.is_host() && loss_scale.factor != nullptr) view.factor *= *loss_scale.factor;
  const bool plain = grads && grads->is_flat() && grads->flat().dtype == DType::kFloat32 &&
                     view.factor == 1 && view.scale == nullptr;
  for (SectionStep& step : steps()) {
    step.grads = view;
    if (plain && step.section->has_all_tensors()) {
      step.grads.flat = static_cast<const float*>(grads->flat().data);
    } else {
      step.grads.places = step.gradients.data();
    }
  }
}

void Optimizer::Impl::begin(const Parameters& params, const std::optional<Gradients>& grads) {
  check_usable();
  PRIDE_CHECK(!in_step, "optimizer: begin_step() while a step is on");
  is_whole = false;
  loss_scale = next_scale;
  set_gradients(grads);
  set_context(params, "begin_step");
  results.clear();
  reported.assign(layout.tensors().size(), 0);
  released.assign(layout.tensors().size(), 0);
  one_by_one = !grads;
  waiting = tensors_of_bucket;
  if (!pipeline->has_delay()) traffic_before = traffic();
  guarded([&] {
    pipeline->begin(skips_non_finite() || options.clip_global_norm > 0, options.clip_global_norm);
  });
  next_scale = {};  // only now: a refused step leaves it for the next
  in_step = true;
}

void Optimizer::Impl::tensor_ready(std::size_t tensor, const std::optional<ConstTensor>& grad) {
  PRIDE_CHECK(in_step, "optimizer: gradient_ready() outside a step");
  PRIDE_CHECK(tensor < reported.size(), "optimizer: gradient_ready() of tensor ", tensor,
              ", the layout has ", reported.size(), " tensors");
  const TensorSlot& slot = layout.tensors()[tensor];
  PRIDE_CHECK(reported[tensor] == 0, "optimizer: tensor '", slot.spec.name,
              "' reported ready twice in a step");
  const bool is_null = grad && grad->data == nullptr;
  PRIDE_CHECK(!one_by_one || grad, "optimizer: gradient_ready() was given no gradient of '",
              slot.spec.name, "', nor was begin_step()");
  PRIDE_CHECK(one_by_one || !grad || is_null,
              "optimizer: gradient_ready() was given a gradient of '", slot.spec.name,
              "', but begin_step() was given all gradients");
  if (one_by_one) place_gradient(steps(), tensor, *grad);
  submit_tensor(tensor, is_null || lacks_gradient(steps(), tensor));
}

void Optimizer::Impl::submit_tensor(std::size_t tensor, bool is_unused) {
  const std::size_t section = sections.by_tensor()[tensor].section, index = index_of(tensor);
  SectionStep& step = steps()[section];
  reported[tensor] = 1;
  is_unused = is_unused || step.ctx.is_frozen(index);
  step.unused[index] = is_unused ? 1 : 0;
  guarded([&] {
    space.after(options.stream);
    if (!is_unused) pipeline->tensor_ready(section, index);
    for (const std::size_t b : buckets_of_tensor[tensor]) {
      if (--waiting[b] == 0) pipeline->submit(b);
    }
  });
}

// The caller's stream may write to the memory once the device has read it.
std::vector<std::size_t> Optimizer::Impl::take_released() {
  std::vector<std::size_t> tensors;
  for (std::size_t t = 0; in_step && t < reported.size(); ++t) {
    const bool was =
        released[t] != 0 || reported[t] == 0 || step_of(steps(), t).unused[index_of(t)] != 0;
    if (was || !std::ranges::all_of(buckets_of_tensor[t],
                                    [&](std::size_t b) { return pipeline->is_done_with(b); })) {
      continue;
    }
    released[t] = 1;
    tensors.push_back(t);
  }
  if (!tensors.empty()) space.before(options.stream);
  return tensors;
}

Traffic Optimizer::Impl::traffic() const {
  if (pipeline->has_delay()) return pipeline->traffic();  // threads change the other counters now
  Traffic sum;
  for (const auto& comm : comms) sum = sum + comm->traffic();
  return sum;
}

Traffic Optimizer::Impl::uncounted() {
  const Traffic now = traffic(), before = std::exchange(traffic_before, now);
  return now - before;
}

StepReport Optimizer::Impl::finish() {
  PRIDE_CHECK(in_step, "optimizer: finish_step() outside a step");
  std::optional<NonFinite> non_finite;
  guarded([&] { non_finite = pipeline->finish(); });
  in_step = false;
  StepReport report;
  end_step(non_finite, report);
  if (!non_finite || !loss_scale.used) ++steps_done;
  publish();
  const Traffic all = uncounted();
  enter(all, report);
  for (std::size_t i = 0; i < sections.size(); ++i) {
    section_traffic[i] = sections.size() == 1 ? all : pipeline->traffic_of(i);
  }
  enter(pipeline->timing(), report);
  if (options.clip_global_norm > 0 && !non_finite) report.grad_norm = pipeline->grad_norm();
  return report;
}

StepReport Optimizer::step(const Parameters& params, const Gradients& grads,
                           std::span<const bool> unused) {
  Impl& all = impl();
  all.check_flags(unused);
  all.begin(params, grads);
  // last tensor first: the order of the buckets
  for (std::size_t t = all.layout.tensors().size(); t-- > 0;) {
    all.submit_tensor(t, all.lacks_gradient(all.steps(), t) || (!unused.empty() && unused[t]));
  }
  return all.finish();
}

void Optimizer::begin_step(const Parameters& params, const std::optional<Gradients>& grads) {
  impl().begin(params, grads);
}
void Optimizer::gradient_ready(std::size_t tensor, const std::optional<ConstTensor>& grad) {
  impl().tensor_ready(tensor, grad);
}
StepReport Optimizer::finish_step() { return impl().finish(); }
std::vector<std::size_t> Optimizer::take_released() { return impl().take_released(); }

void Optimizer::scale_next_step(const float* factor) {
  impl().check_idle("scale_next_step");
  for (const SectionStep& step : impl().steps()) {
    PRIDE_CHECK(!step.is_local(), "optimizer: scale_next_step() is not supported with ",
                step.section->method,
                ": a step without exchange cannot report a non-finite gradient to all ranks");
  }
  impl().next_scale = {true, factor};
}

std::span<const std::byte> Optimizer::results() const {
  impl().check_idle("results");
  return impl().results;
}

}  // namespace pride
