// A step: its scalars, the tensors as they become ready, the end, and what went wrong.
// SPDX-License-Identifier: Apache-2.0
#include "optimizer/optimizer_impl.h"
#include "pride/error.h"

namespace pride {

void Optimizer::Impl::begin(std::span<float> params, std::span<const float> grads) {
  PRIDE_CHECK(grads.size() == layout.flat_size(), "optimizer: ", grads.size(),
              " gradients given, the layout has ", layout.flat_size(), " with padding");
  begin_with(params, {grads.data(), grads.size()});
}

void Optimizer::Impl::begin(std::span<float> params) {
  ConstView grads{.n = layout.flat_size()};
  apart = {};
  if (method->protocol(round_of(steps_done)).gradient_by_piece) {
    for (const TensorSlot& slot : layout.tensors()) apart.offsets.push_back(slot.offset);
    apart.data.resize(layout.tensors().size());
    grads.apart = &apart;
  } else {
    if (wide.size() == 0) wide = FlatBuffer(layout.flat_size());
    grads.data = wide.data();
  }
  begin_with(params, grads);
  lie_apart = true;
}

void Optimizer::Impl::begin_with(std::span<float> params, ConstView grads) {
  if (!refusal.empty()) throw InvalidArgument("optimizer: no further steps: " + refusal);
  PRIDE_CHECK(!in_step, "optimizer: begin_step() while a step is on");
  PRIDE_CHECK(params.size() == layout.flat_size(), "optimizer: ", params.size(),
              " parameters given, the layout has ", layout.flat_size(), " with padding");
  try {
    if (!params_checked) check_parameters(params);
  } catch (const CommError& e) {
    refusal = e.what();
    throw;
  }
  scalars.clear();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    scalars.push_back(scalars_of(groups[g], steps_done - group_starts[g]));
  }
  unused.assign(layout.tensors().size(), 1);
  reported.assign(layout.tensors().size(), 0);
  narrow = {};
  lie_apart = false;
  waiting = tensors_of_bucket;
  if (!pipeline->has_delay()) traffic_before = traffic();

  static_cast<Round&>(ctx) = round_of(steps_done);
  params_of_step = params;
  ctx.rank = central ? central->number() : comms.front()->rank();
  ctx.groups = scalars;
  ctx.scalars_digest = digest_of(scalars);
  ctx.unused = unused;
  Pipeline::ExchangeAll all;
  if (ends_round(steps_done)) {
    all = [this](StepContext& step, std::span<Flight> flights) {
      return central->exchange(params_of_step, step, flights);
    };
  }
  guarded([&] {
    pipeline->begin(ctx, {params.data(), params.size()}, grads,
                    options.non_finite == NonFinitePolicy::kSkip || options.clip_global_norm > 0,
                    options.clip_global_norm, std::move(all));
  });
  in_step = true;
}

void Optimizer::Impl::begin(std::span<float> params, std::span<const BFloat16> grads) {
  PRIDE_CHECK(grads.size() == layout.flat_size(), "optimizer: ", grads.size(),
              " gradients given, the layout has ", layout.flat_size(), " with padding");
  if (wide.size() == 0) wide = FlatBuffer(layout.flat_size());
  begin(params, std::span<const float>(wide.span()));
  narrow = grads;
}

void Optimizer::Impl::check_unreported(std::size_t tensor) const {
  PRIDE_CHECK(in_step, "optimizer: gradient_ready() outside a step");
  PRIDE_CHECK(tensor < reported.size(), "optimizer: tensor ", tensor, " of ", reported.size());
  PRIDE_CHECK(reported[tensor] == 0, "optimizer: tensor '", layout.tensors()[tensor].spec.name,
              "' reported ready twice in a step");
}

template <typename T>
void Optimizer::Impl::tensor_ready(std::size_t tensor, std::span<const T> grad) {
  check_unreported(tensor);
  const TensorSlot& slot = layout.tensors()[tensor];
  PRIDE_CHECK(lie_apart, "optimizer: a gradient of its own for '", slot.spec.name,
              "' in a step that was begun with all gradients");
  PRIDE_CHECK(grad.size() == slot.n, "optimizer: a gradient of ", grad.size(), " values for '",
              slot.spec.name, "', which has ", slot.n);
  std::span<const float> values;
  if constexpr (std::is_same_v<T, float>) values = grad;
  if (values.data() == nullptr || apart.data.empty()) {
    if (wide.size() == 0) wide = FlatBuffer(layout.flat_size());
    const auto copy = wide.span().subspan(slot.offset, slot.n);
    if constexpr (std::is_same_v<T, float>) {
      std::ranges::copy(grad, copy.begin());
    } else {
      to_float(grad, copy);
    }
    values = copy;
  }
  if (!apart.data.empty()) apart.data[tensor] = values.data();
  submit_tensor(tensor, false);
}

template void Optimizer::Impl::tensor_ready(std::size_t, std::span<const float>);
template void Optimizer::Impl::tensor_ready(std::size_t, std::span<const BFloat16>);

void Optimizer::Impl::tensor_ready(std::size_t tensor, bool is_unused) {
  check_unreported(tensor);
  const TensorSlot& slot = layout.tensors()[tensor];
  PRIDE_CHECK(!lie_apart || is_unused, "optimizer: no gradient given for '", slot.spec.name,
              "' in a step that was begun without gradients");
  if (!narrow.empty() && !is_unused) {
    to_float(narrow.subspan(slot.offset, slot.n), wide.span().subspan(slot.offset, slot.n));
  }
  submit_tensor(tensor, is_unused);
}

void Optimizer::Impl::submit_tensor(std::size_t tensor, bool is_unused) {
  reported[tensor] = 1;
  unused[tensor] = is_unused ? 1 : 0;
  guarded([&] {
    if (!is_unused) pipeline->tensor_ready(tensor);
    for (const std::size_t b : buckets_of_tensor[tensor]) {
      if (--waiting[b] == 0) pipeline->submit(b);
    }
  });
}

Traffic Optimizer::Impl::traffic() const {
  if (pipeline->has_delay()) return pipeline->traffic();  // the others count at this moment
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
  narrow = {};
  StepReport report;
  report.step = steps_done;
  if (non_finite) {
    skip(describe(*non_finite, steps_done), false, report);
  } else {
    StepNotes notes;
    guarded([&] { notes = method->end_step(ctx); });
    if (notes.alone) skip(describe(*notes.alone, steps_done), true, report);
    if (notes.dropped) skip(describe(*notes.dropped, notes.dropped_step), false, report);
    report.diagnostics = std::move(notes.diagnostics);
    report.note = std::move(notes.note);
  }
  ++steps_done;
  if (ends_round(report.step)) {
    guarded([&] {
      RoundReport& round = report.round.emplace();
      steps_done =
          central->period() *
          central->finish(params_of_step, report.step / central->period(), !non_finite, round);
    });
  }
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
  return concat("step ", step + 1, ": NaN or Inf in the gradient of '", name, "' on rank ",
                seen.rank);
}

// Of this rank alone: no other rank knows of it.
void Optimizer::Impl::skip(const std::string& text, bool alone, StepReport& report) {
  if (options.non_finite == NonFinitePolicy::kRaise) {
    refusal = text + "; load a state to go on";
    if (alone) caller.fail(text);
    throw NonFiniteGradient(text);
  }
  report.skip_reason += (report.skipped ? "; " : "") + text;
  report.skipped = true;
}

template <typename T>
StepReport Optimizer::Impl::whole_step(std::span<float> params, std::span<const T> grads,
                                       std::span<const bool> unused_here) {
  const std::size_t n = layout.tensors().size();
  PRIDE_CHECK(unused_here.empty() || unused_here.size() == n, "optimizer: ", unused_here.size(),
              " flags of unused tensors for ", n, " tensors");
  begin(params, grads);
  // last tensor first: the order of the buckets
  for (std::size_t i = n; i-- > 0;) tensor_ready(i, !unused_here.empty() && unused_here[i]);
  return finish();
}

template StepReport Optimizer::Impl::whole_step(std::span<float>, std::span<const float>,
                                                std::span<const bool>);
template StepReport Optimizer::Impl::whole_step(std::span<float>, std::span<const BFloat16>,
                                                std::span<const bool>);

}  // namespace pride
