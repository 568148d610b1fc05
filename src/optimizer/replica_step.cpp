// What the steps of all front doors share: gradients, context, non-finite values.
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "device/device.h"
#include "optimizer/replica_impl.h"
#include "pride/error.h"

namespace pride {

void Replica::Impl::enter(const Traffic& traffic, StepReport& report) {
  report.bytes_sent += traffic.bytes_sent;
  report.bytes_received += traffic.bytes_received;
  report.messages_sent += traffic.messages_sent;
}

void Replica::Impl::enter(const StepTimes& times, StepReport& report) {
  report.encode_s += times.encode_s;
  report.exchange_s += times.exchange_s;
  report.apply_s += times.apply_s;
}

StepNotes Replica::Impl::end_local_step(const SectionStep& step) {
  if (!step.is_local()) return {};
  StepNotes notes = step.method->local()->end_step(step.ctx);
  if (notes.alone) notes.alone = step.section->in_all(*notes.alone);
  if (notes.dropped) notes.dropped = step.section->in_all(*notes.dropped);
  return notes;
}

void Replica::Impl::check_usable() const {
  if (!refusal.empty()) throw InvalidArgument("optimizer: no further steps: " + refusal);
}

SectionStep& Replica::Impl::step_of(Steps& steps, std::size_t tensor) const {
  return steps[sections.by_tensor()[tensor].section];
}

std::size_t Replica::Impl::index_of(std::size_t tensor) const {
  return sections.by_tensor()[tensor].index;
}

void Replica::Impl::place_gradient(Steps& steps, std::size_t tensor,
                                   const ConstTensor& grad) const {
  const TensorSlot& slot = layout.tensors()[tensor];
  PRIDE_CHECK(grad.n == slot.n || grad.data == nullptr, "optimizer: a gradient of ", grad.n,
              " values for '", slot.spec.name, "', which has ", slot.n);
  SectionStep& step = step_of(steps, tensor);
  const std::size_t index = index_of(tensor);
  step.gradients[index] = {grad.data, step.section->layout.tensors()[index].offset, grad.dtype};
}

void Replica::Impl::place_gradients(Steps& steps, const std::optional<Gradients>& grads) const {
  for (SectionStep& step : steps) step.gradients.assign(step.section->tensors.size(), {});
  if (!grads) return;
  const std::size_t n = layout.tensors().size();
  if (!grads->is_flat()) {
    PRIDE_CHECK(grads->each().size() == n, "optimizer: ", grads->each().size(),
                " gradients given, the layout has ", n, " tensors");
    for (std::size_t t = 0; t < n; ++t) place_gradient(steps, t, grads->each()[t]);
    return;
  }
  const ConstTensor& flat = grads->flat();
  PRIDE_CHECK(flat.n == layout.flat_size(), "optimizer: ", flat.n,
              " gradients given, the layout has ", layout.flat_size(), " with padding");
  for (std::size_t t = 0; t < n; ++t) {
    const TensorSlot& slot = layout.tensors()[t];
    const auto* data = static_cast<const std::byte*>(flat.data);
    place_gradient(steps, t, {data + slot.offset * size_of(flat.dtype), slot.n, flat.dtype});
  }
}

bool Replica::Impl::lacks_gradient(Steps& steps, std::size_t tensor) const {
  return layout.tensors()[tensor].n > 0 &&
         step_of(steps, tensor).gradients[index_of(tensor)].data == nullptr;
}

void Replica::Impl::check_flags(std::span<const bool> given) const {
  const std::size_t n = layout.tensors().size();
  PRIDE_CHECK(given.empty() || given.size() == n, "optimizer: ", given.size(),
              " flags of unused tensors for ", n, " tensors");
}

void Replica::Impl::set_unused(Steps& steps, std::span<const bool> given) const {
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    SectionStep& step = step_of(steps, t);
    const bool flagged = !given.empty() && given[t];
    step.unused[index_of(t)] =
        lacks_gradient(steps, t) || flagged || step.ctx.is_frozen(index_of(t)) ? 1 : 0;
  }
}

// Sets what does not depend on gradients.
void Replica::Impl::set_context(const Parameters& params, const char* call) {
  check_idle(call);
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
  // a coordinator's records have no flags of frozen tensors
  const std::uint64_t digest =
      digest_of(scalars, by_ballots ? std::span<const char>() : std::span<const char>(frozen));
  section_traffic.assign(sections.size(), {});
  for (std::size_t i = 0; i < workers.size(); ++i) {
    for (SectionStep& step : workers[i]) {
      step.frozen = step.section->flags(frozen);
      step.unused.assign(step.section->tensors.size(), 1);
      step.ctx = {};
      static_cast<SharedContext&>(step.ctx) = shared_context(steps_done);
      step.ctx.rank = voter() + static_cast<int>(i);
      step.ctx.groups = scalars;
      step.ctx.frozen = step.frozen;
      step.ctx.unused = step.unused;
      step.ctx.scalars_digest = digest;
      step.ctx.memory = &space;
      step.protocol = step.method->protocol(step.ctx);
    }
  }
  set_views();
}

void Replica::Impl::set_views() {
  places.resize(sections.size());
  for (std::size_t s = 0; s < sections.size(); ++s) {
    const View x = sections[s].view(parameters->view(), places[s]);
    for (Steps& steps : workers) steps[s].ctx.x = steps[s].x = x;
  }
}

// Steps are counted from 1 in texts, as the trainer does.
std::string Replica::Impl::describe(const NonFinite& seen, std::int64_t step) const {
  const auto& tensors = layout.tensors();
  const std::string name =
      seen.tensor < tensors.size() ? tensors[seen.tensor].spec.name : std::string("?");
  if (seen.rank == NonFinite::kSum) {
    return concat("step ", step + 1, ": the sum of the ranks' gradients of '", name, "' overflows");
  }
  if (seen.rank == NonFinite::kModelParallel) {
    return concat("step ", step + 1, ": NaN or Inf in a gradient of another model-parallel rank");
  }
  return concat("step ", step + 1, ": NaN or Inf in the gradient of '", name, "' on rank ",
                seen.rank);
}

void Replica::Impl::skip(const std::string& text, StepReport& report) {
  if (!skips_non_finite()) {
    refusal = text + "; load a state to go on";
    leave();
    throw NonFiniteGradient(text);
  }
  report.skip_reason += (report.skipped ? "; " : "") + text;
  report.skipped = true;
}

void Replica::Impl::end_step(const std::optional<NonFinite>& non_finite, StepReport& report) {
  report.step = steps_done;
  if (non_finite) {
    skip(describe(*non_finite, steps_done), report);
  } else {
    StepNotes notes;
    for (const SectionStep& step : workers.front()) {
      guarded([&] { notes = end_local_step(step); });
      if (notes.alone && !skips_non_finite()) fail_others(describe(*notes.alone, steps_done));
      note(notes, report);
    }
  }
  if (options.device) report.note = options.device->warning();
}

void Replica::Impl::note(const StepNotes& notes, StepReport& report) {
  if (notes.alone) skip(describe(*notes.alone, report.step), report);
  if (notes.dropped) skip(describe(*notes.dropped, notes.dropped_step), report);
}

}  // namespace pride
