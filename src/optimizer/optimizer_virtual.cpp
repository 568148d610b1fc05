// A step of virtual workers: their gradients one after the other, then one step for all.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "optimizer/optimizer_impl.h"
#include "pride/error.h"

namespace pride {

void Optimizer::hand_over(int worker, const Parameters& params, const Gradients& grads,
                          std::span<const bool> unused) {
  impl_->hand_over(worker, params, grads, unused);
}

StepReport Optimizer::step_workers(const Parameters& params) {
  return impl_->finish_workers(params);
}

void Optimizer::to_worker(int worker, const Parameters& params) const {
  impl_->check_worker(worker, "to_worker");
  impl_->follow(params, "to_worker");
  if (LocalParameters* local = impl_->workers->method(worker).local()) {
    local->to_local(impl_->parameters->view(), impl_->frozen);
  }
  impl_->publish();
}

void Optimizer::Impl::check_worker(int worker, const char* call) const {
  PRIDE_CHECK(workers, "optimizer: ", call, "() of virtual worker ", worker,
              ": the optimizer has none (option virtual_workers)");
  PRIDE_CHECK(worker >= 0 && worker < n_workers(), "optimizer: ", call, "() of virtual worker ",
              worker, ", there are ", n_workers());
}

void Optimizer::Impl::hand_over(int worker, const Parameters& params, const Gradients& grads,
                                std::span<const bool> unused_there) {
  check_worker(worker, "hand_over");
  if (!refusal.empty()) throw InvalidArgument("optimizer: no further steps: " + refusal);
  PRIDE_CHECK(!in_step || !workers->handed_over(worker), "optimizer: virtual worker ", worker,
              " has handed over its gradients in this step already");
  const std::size_t n = layout.tensors().size();
  PRIDE_CHECK(unused_there.empty() || unused_there.size() == n, "optimizer: ", unused_there.size(),
              " flags of unused tensors for ", n, " tensors");
  view_of(&grads);
  const GradientView view{.places = gradients.data(), .factor = gradient_factor};
  if (!in_step) set_context(params, "hand_over");
  in_step = true;
  unused.assign(n, 0);
  for (std::size_t t = 0; t < n; ++t) {
    const bool missing = gradients[t].data == nullptr && layout.tensors()[t].n > 0;
    const bool flagged = !unused_there.empty() && unused_there[t];
    unused[t] = missing || flagged || ctx.is_frozen(t) ? 1 : 0;
  }
  guarded([&] {
    space.after(options.stream);
    workers->hand_over(worker, ctx, unused, view);
    space.before(options.stream);  // the next worker's gradients may overwrite these
  });
}

StepReport Optimizer::Impl::finish_workers(const Parameters& params) {
  if (!refusal.empty()) throw InvalidArgument("optimizer: no further steps: " + refusal);
  check_worker(0, "step_workers");
  for (int i = 0; i < n_workers(); ++i) {
    PRIDE_CHECK(in_step && workers->handed_over(i), "optimizer: virtual worker ", i, " of ",
                n_workers(), " has not handed over its gradients in step ", steps_done + 1);
  }
  follow(params, "step_workers");
  std::optional<NonFinite> non_finite;
  guarded([&] { non_finite = workers->finish(parameters->view(), options.clip_global_norm); });
  in_step = false;
  StepReport report;
  report.step = steps_done;
  report_workers(non_finite, report);
  ++steps_done;
  publish();
  if (options.clip_global_norm > 0 && !non_finite) report.grad_norm = workers->grad_norm();
  const Pipeline::Timing& timing = workers->timing();
  report.encode_s = timing.encode_s;
  report.exchange_s = timing.exchange_s;
  report.apply_s = timing.apply_s;
  return report;
}

// Reports bytes, notes and skipped steps: a step of all workers, or local steps of some.
void Optimizer::Impl::report_workers(const std::optional<NonFinite>& non_finite,
                                     StepReport& report) {
  for (int i = 0; i < n_workers(); ++i) {
    const Traffic& t = workers->traffic(i);
    report.workers.push_back({t.bytes_sent, t.bytes_received, t.messages_sent, {}});
  }
  report.bytes_sent = report.workers[0].bytes_sent;
  report.bytes_received = report.workers[0].bytes_received;
  report.messages_sent = report.workers[0].messages_sent;
  if (non_finite) {
    skip(describe(*non_finite, steps_done), false, report);
    for (WorkerReport& worker : report.workers) worker.skip_reason = report.skip_reason;
    return;
  }
  std::vector<StepNotes> notes;
  guarded([&] { notes = workers->end_step(); });
  for (std::size_t i = 0; i < notes.size(); ++i) {
    StepReport mine;
    if (notes[i].alone) skip(describe(*notes[i].alone, steps_done), false, mine);
    if (notes[i].dropped) skip(describe(*notes[i].dropped, notes[i].dropped_step), false, mine);
    report.workers[i].skip_reason = mine.skip_reason;
    if (!mine.skipped || report.skip_reason.ends_with(mine.skip_reason)) continue;
    report.skip_reason += (report.skipped ? "; " : "") + mine.skip_reason;
    report.skipped = true;
  }
}

}  // namespace pride
