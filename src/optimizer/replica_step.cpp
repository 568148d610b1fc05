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

StepNotes Replica::Impl::end_local_step(Method& method, const StepContext& ctx) {
  return method.local() != nullptr ? method.local()->end_step(ctx) : StepNotes{};
}

void Replica::Impl::check_usable() const {
  if (!refusal.empty()) throw InvalidArgument("optimizer: no further steps: " + refusal);
}

void Replica::Impl::place_gradient(std::size_t tensor, const ConstTensor& grad) {
  const TensorSlot& slot = layout.tensors()[tensor];
  PRIDE_CHECK(grad.n == slot.n || grad.data == nullptr, "optimizer: a gradient of ", grad.n,
              " values for '", slot.spec.name, "', which has ", slot.n);
  gradients[tensor] = {grad.data, slot.offset, grad.dtype};
}

void Replica::Impl::place_gradients(const Gradients& grads) {
  gradients.assign(layout.tensors().size(), {});
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

void Replica::Impl::check_flags(std::span<const bool> given) const {
  const std::size_t n = layout.tensors().size();
  PRIDE_CHECK(given.empty() || given.size() == n, "optimizer: ", given.size(),
              " flags of unused tensors for ", n, " tensors");
}

void Replica::Impl::set_unused(std::span<const bool> given) {
  unused.assign(layout.tensors().size(), 0);
  for (std::size_t t = 0; t < unused.size(); ++t) {
    const bool missing = gradients[t].data == nullptr && layout.tensors()[t].n > 0;
    const bool flagged = !given.empty() && given[t];
    unused[t] = missing || flagged || ctx.is_frozen(t) ? 1 : 0;
  }
  ctx.unused = unused;
}

// Sets the parts of the context that do not depend on gradients.
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
  static_cast<Round&>(ctx) = round_of(steps_done);
  ctx.rank = voter();
  ctx.groups = scalars;
  ctx.x = parameters->view();
  ctx.frozen = frozen;
  // a coordinator's records have no flags of frozen tensors
  ctx.scalars_digest = digest_of(scalars, by_ballots ? std::span<const char>() : ctx.frozen);
  ctx.memory = &space;
  ctx.grad_scale = 1;
}

// Steps are counted from 1 in texts, as the trainer does.
std::string Replica::Impl::describe(const NonFinite& seen, std::int64_t step) const {
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
    guarded([&] { notes = end_local_step(*method, ctx); });
    if (notes.alone && !skips_non_finite()) fail_others(describe(*notes.alone, steps_done));
    note(notes, report);
  }
  if (options.device) report.note = options.device->warning();
}

void Replica::Impl::note(const StepNotes& notes, StepReport& report) {
  if (notes.alone) skip(describe(*notes.alone, report.step), report);
  if (notes.dropped) skip(describe(*notes.dropped, notes.dropped_step), report);
}

}  // namespace pride
