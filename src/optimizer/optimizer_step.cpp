// A step: its scalars, the tensors as they become ready, its end, and its errors.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "device/device.h"
#include "optimizer/optimizer_impl.h"
#include "pride/error.h"

namespace pride {

// Stores the caller's addresses. Only between steps.
void Optimizer::Impl::place(const Parameters& params, const char* call) {
  PRIDE_CHECK(!in_step, "optimizer: ", call, "() in the middle of a step");
  follow(params, call);
}

void Optimizer::Impl::follow(const Parameters& params, const char* call) {
  space.after(options.stream);
  parameters->place(params, call);
}

// Makes written parameters available to the caller's stream.
void Optimizer::Impl::publish() {
  parameters->publish();
  space.before(options.stream);
}

// After an error: what was begun runs now, and the caller's stream waits for it. Otherwise it would
// change parameters that the caller has restored, or read gradients that are freed.
void Optimizer::Impl::leave() noexcept try {
  space.before(options.stream);
} catch (const std::exception&) {
  return;  // the first error is reported
}

void Optimizer::Impl::place_gradient(std::size_t tensor, const ConstTensor& grad) {
  const TensorSlot& slot = layout.tensors()[tensor];
  PRIDE_CHECK(grad.n == slot.n || grad.data == nullptr, "optimizer: a gradient of ", grad.n,
              " values for '", slot.spec.name, "', which has ", slot.n);
  gradients[tensor] = {grad.data, slot.offset, grad.dtype};
}

void Optimizer::Impl::place_gradients(const Gradients& grads) {
  if (!grads.is_flat()) {
    PRIDE_CHECK(grads.each().size() == gradients.size(), "optimizer: ", grads.each().size(),
                " gradients given, the layout has ", gradients.size(), " tensors");
    for (std::size_t t = 0; t < gradients.size(); ++t) place_gradient(t, grads.each()[t]);
    return;
  }
  const ConstTensor& flat = grads.flat();
  PRIDE_CHECK(flat.n == layout.flat_size(), "optimizer: ", flat.n,
              " gradients given, the layout has ", layout.flat_size(), " with padding");
  for (std::size_t t = 0; t < gradients.size(); ++t) {
    const TensorSlot& slot = layout.tensors()[t];
    const auto* data = static_cast<const std::byte*>(flat.data);
    place_gradient(t, {data + slot.offset * size_of(flat.dtype), slot.n, flat.dtype});
  }
}

// A coordinator's record has no flags of frozen tensors: workers that replay it would decay them.
void Optimizer::Impl::check_frozen() const {
  for (std::size_t t = 0; central && t < frozen.size(); ++t) {
    const TensorSpec& spec = layout.tensors()[t].spec;
    PRIDE_CHECK(frozen[t] == 0 || scalars[static_cast<std::size_t>(spec.group)].decay == 1,
                "optimizer: '", spec.name,
                "' is frozen and has weight decay, which is not supported with a ",
                "coordinator; leave out frozen tensors, or set their weight decay to 0");
  }
}

// Where this rank's gradients lie. `grads` null: they are given one by one.
GradientView Optimizer::Impl::view_of(const Gradients* grads) {
  GradientView view{.factor = gradient_factor};
  if (!space.is_host()) view.scale = loss_scale.factor;
  if (space.is_host() && loss_scale.factor != nullptr) view.factor *= *loss_scale.factor;
  gradients.assign(layout.tensors().size(), {});
  if (grads != nullptr) place_gradients(*grads);
  if (grads != nullptr && grads->is_flat() && grads->flat().dtype == DType::kFloat32 &&
      view.factor == 1 && view.scale == nullptr) {
    view.flat = static_cast<const float*>(grads->flat().data);
  } else {
    view.places = gradients.data();
  }
  return view;
}

// Sets the parts of the context that do not depend on gradients.
void Optimizer::Impl::set_context(const Parameters& params, const char* call) {
  place(params, call);
  try {
    if (!params_checked) check_parameters();
  } catch (const CommError& e) {
    refusal = e.what();
    throw;
  }
  scalars.clear();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    scalars.push_back(scalars_of(groups[g], steps_done - group_starts[g]));
  }
  check_frozen();
  static_cast<Round&>(ctx) = round_of(steps_done);
  ctx.rank = central ? central->number() : comms.front()->rank();
  ctx.groups = scalars;
  ctx.x = parameters->view();
  ctx.frozen = frozen;
  ctx.scalars_digest = digest_of(scalars, central ? std::span<const char>() : ctx.frozen);
  ctx.memory = &space;
}

void Optimizer::Impl::begin(const Parameters& params, const Gradients* grads) {
  if (!refusal.empty()) throw InvalidArgument("optimizer: no further steps: " + refusal);
  PRIDE_CHECK(!workers, "optimizer: with ", n_workers(),
              " virtual workers call hand_over() for each, then step_workers()");
  PRIDE_CHECK(!in_step, "optimizer: begin_step() while a step is on");
  is_whole = false;
  loss_scale = next_scale;
  const GradientView view = view_of(grads);
  set_context(params, "begin_step");
  results.clear();
  unused.assign(layout.tensors().size(), 1);
  reported.assign(layout.tensors().size(), 0);
  released.assign(layout.tensors().size(), 0);
  one_by_one = grads == nullptr;
  waiting = tensors_of_bucket;
  if (!pipeline->has_delay()) traffic_before = traffic();
  ctx.unused = unused;
  Pipeline::ExchangeAll all;
  if (ends_round(steps_done)) {
    all = [this](StepContext& step, std::span<Flight> flights) {
      is_whole = true;  // without a result nothing is applied
      const auto results = central->exchange(parameters->view(), step, flights);
      is_whole = false;
      return results;
    };
  }
  guarded([&] {
    pipeline->begin(ctx, parameters->view(), view,
                    skips_non_finite() || options.clip_global_norm > 0, options.clip_global_norm,
                    std::move(all));
  });
  next_scale = {};  // only now: a refused step leaves it for the next
  in_step = true;
}

void Optimizer::Impl::check_unreported(std::size_t tensor) const {
  PRIDE_CHECK(in_step, "optimizer: gradient_ready() outside a step");
  PRIDE_CHECK(tensor < reported.size(), "optimizer: gradient_ready() of tensor ", tensor,
              ", the layout has ", reported.size(), " tensors");
  PRIDE_CHECK(reported[tensor] == 0, "optimizer: tensor '", layout.tensors()[tensor].spec.name,
              "' reported ready twice in a step");
}

void Optimizer::Impl::tensor_ready(std::size_t tensor, const ConstTensor& grad) {
  check_unreported(tensor);
  PRIDE_CHECK(one_by_one, "optimizer: gradient_ready() was given a gradient of '",
              layout.tensors()[tensor].spec.name, "', but begin_step() was given all gradients");
  place_gradient(tensor, grad);
  submit_tensor(tensor, grad.data == nullptr && grad.n > 0);
}

void Optimizer::Impl::tensor_ready(std::size_t tensor, bool is_unused) {
  check_unreported(tensor);
  const TensorSlot& slot = layout.tensors()[tensor];
  PRIDE_CHECK(!one_by_one || is_unused, "optimizer: gradient_ready() was given no gradient of '",
              slot.spec.name, "', nor was begin_step()");
  submit_tensor(tensor, is_unused || (slot.n > 0 && gradients[tensor].data == nullptr));
}

void Optimizer::Impl::submit_tensor(std::size_t tensor, bool is_unused) {
  reported[tensor] = 1;
  is_unused = is_unused || ctx.is_frozen(tensor);
  unused[tensor] = is_unused ? 1 : 0;
  guarded([&] {
    space.after(options.stream);
    if (!is_unused) pipeline->tensor_ready(tensor);
    for (const std::size_t b : buckets_of_tensor[tensor]) {
      if (--waiting[b] == 0) pipeline->submit(b);
    }
  });
}

// The caller's stream may write to the memory once the device has read it.
std::vector<std::size_t> Optimizer::Impl::take_released() {
  std::vector<std::size_t> tensors;
  for (std::size_t t = 0; in_step && t < reported.size(); ++t) {
    const bool was = released[t] != 0 || reported[t] == 0 || unused[t] != 0;
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
  Traffic sum = central ? central->traffic() : Traffic{};
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
  report.step = steps_done;
  if (non_finite) {
    skip(describe(*non_finite, steps_done), false, report);
  } else {
    StepNotes notes;
    guarded([&] {
      if (method->local() != nullptr) notes = method->local()->end_step(ctx);
    });
    if (notes.alone) skip(describe(*notes.alone, steps_done), true, report);
    if (notes.dropped) skip(describe(*notes.dropped, notes.dropped_step), false, report);
  }
  if (options.device) report.note = options.device->warning();
  if (!non_finite || !loss_scale.used) ++steps_done;
  if (ends_round(report.step)) {
    const std::int64_t first = report.step / central->period();
    steps_done = report.step;  // until the round is over
    guarded([&] {
      by_rounds(first, [&](std::int64_t& round) {
        central->finish(parameters->view(), round, !non_finite, report.round.emplace());
      });
    });
    // the run's parameters may be those of the start of this round
    if (steps_done == report.step) steps_done = first * central->period();
  }
  publish();
  const Traffic counted = uncounted();
  report.bytes_sent = counted.bytes_sent;
  report.bytes_received = counted.bytes_received;
  report.messages_sent = counted.messages_sent;
  if (options.clip_global_norm > 0 && !non_finite) report.grad_norm = pipeline->grad_norm();
  report.encode_s = pipeline->timing().encode_s;
  report.exchange_s = pipeline->timing().exchange_s;
  report.apply_s = pipeline->timing().apply_s;
  return report;
}

// Steps are counted from 1 in texts, as the trainer does.
std::string Optimizer::Impl::describe(const NonFinite& seen, std::int64_t step) const {
  const auto& tensors = layout.tensors();
  const std::string name =
      seen.tensor < tensors.size() ? tensors[seen.tensor].spec.name : std::string("?");
  if (seen.rank == NonFinite::kSum) {
    return concat("step ", step + 1, ": the sum of the ranks' gradients of '", name, "' overflows");
  }
  if (seen.rank == NonFinite::kPart) {
    return concat("step ", step + 1, ": NaN or Inf in a gradient of another part of the model");
  }
  return concat("step ", step + 1, ": NaN or Inf in the gradient of '", name, "' on rank ",
                seen.rank);
}

// `alone`: only this rank has the flag, in a step without exchange.
void Optimizer::Impl::skip(const std::string& text, bool alone, StepReport& report) {
  if (!skips_non_finite()) {
    refusal = text + "; load a state to go on";
    leave();
    if (alone) caller.fail(text);
    throw NonFiniteGradient(text);
  }
  report.skip_reason += (report.skipped ? "; " : "") + text;
  report.skipped = true;
}

StepReport Optimizer::Impl::whole_step(const Parameters& params, const Gradients& grads,
                                       std::span<const bool> unused_here) {
  const std::size_t n = layout.tensors().size();
  PRIDE_CHECK(unused_here.empty() || unused_here.size() == n, "optimizer: ", unused_here.size(),
              " flags of unused tensors for ", n, " tensors");
  begin(params, &grads);
  // last tensor first: the order of the buckets
  for (std::size_t i = n; i-- > 0;) tensor_ready(i, !unused_here.empty() && unused_here[i]);
  return finish();
}

}  // namespace pride
