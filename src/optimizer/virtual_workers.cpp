// Construction of virtual workers, and the calls of their front door.
// SPDX-License-Identifier: Apache-2.0
#include "optimizer/virtual_workers.h"

#include <algorithm>
#include <utility>

#include "optimizer/resharding.h"
#include "pride/comm/thread_comm.h"
#include "pride/error.h"

namespace pride {
namespace {

constexpr int kMostVirtualWorkers = 1024;  // as ranks of a world of threads

int number_of(const VirtualWorkersOptions& workers) {
  const int n = workers.number;
  PRIDE_CHECK(n >= 1 && n <= kMostVirtualWorkers, "optimizer: ", n,
              " virtual workers, must be from 1 to ", kMostVirtualWorkers);
  PRIDE_CHECK(workers.weights.empty() || workers.weights.size() == static_cast<std::size_t>(n),
              "optimizer: ", workers.weights.size(), " weights for ", n, " virtual workers");
  return n;
}

}  // namespace

VirtualWorkers::Impl::Impl(Layout the_layout, OptimizerOptions the_options,
                           VirtualWorkersOptions the_workers)
    : Replica::Impl(std::move(the_layout), std::move(the_options), number_of(the_workers),
                    the_workers.number),
      asked(std::move(the_workers)),
      frames(workers.size()) {
  PRIDE_CHECK(
      !options.model_parallel_sum,
      "optimizer: model_parallel_sum is not supported with virtual workers, which need the whole "
      "model");
  PRIDE_CHECK(!options.before_apply,
              "optimizer: before_apply is not supported with virtual workers");
  std::vector<std::int64_t> given(asked.weights.begin(), asked.weights.end());
  given.resize(workers.size(), options.vote_weight);
  weights = votes_of(given);
  for (Frames& of : frames) {
    of.flights.resize(sections.by_bucket().size());
    of.kept.resize(sections.size());
  }
}

std::size_t VirtualWorkers::Impl::checked(int worker, const char* call) const {
  PRIDE_CHECK(worker >= 0 && worker < world, "optimizer: ", call, "() of virtual worker ", worker,
              ", there are ", world);
  return static_cast<std::size_t>(worker);
}

std::size_t VirtualWorkers::Impl::frame_bytes() const {
  std::size_t bytes = 0;
  for (const Frames& of : frames) {
    for (const Flight& flight : of.flights) bytes += flight.capacity_bytes();
  }
  return bytes;
}

void VirtualWorkers::Impl::check_parameters() {
  for (const Steps& steps : workers) {
    for_local(steps, parameters->view(),
              [](LocalParameters& local, View x, std::span<const char>) { local.begin(x); });
  }
  params_checked = true;
}

void VirtualWorkers::Impl::move_server_state(std::size_t section, std::span<const Bucket> from) {
  run_world(world, [&](Communicator& comm) {
    const SectionStep& step = workers[static_cast<std::size_t>(comm.rank())][section];
    move_to_servers(comm, from, step.section->buckets,
                    step.method->state().buffers(StateKind::kServer));
  });
}

// The state that handed-over gradients changed is overwritten.
void VirtualWorkers::Impl::after_load() noexcept {
  for (Frames& of : frames) of.handed_over = false;
  in_step = false;
}

StepReport VirtualWorkers::Impl::step(const Parameters& params) {
  check_usable();
  for (int i = 0; i < world; ++i) {
    PRIDE_CHECK(in_step && frames[static_cast<std::size_t>(i)].handed_over,
                "optimizer: virtual worker ", i, " of ", world,
                " has not handed over its gradients in step ", steps_done + 1);
  }
  place(params, "step");
  set_views();
  std::optional<NonFinite> non_finite;
  guarded([&] { non_finite = exchange_and_apply(); });
  in_step = false;
  StepReport report;
  report.step = steps_done;
  report_workers(non_finite, report);
  ++steps_done;
  publish();
  if (options.clip_global_norm > 0 && !non_finite) report.grad_norm = grad_norm;
  section_traffic = frames.front().traffic;
  for (const Traffic& traffic : section_traffic) enter(traffic, report);
  enter(timing, report);
  return report;
}

// Reports bytes, notes and skipped steps: a step of all workers, or local steps of some.
void VirtualWorkers::Impl::report_workers(const std::optional<NonFinite>& non_finite,
                                          StepReport& report) {
  for (const Frames& of : frames) {
    Traffic sum;
    for (const Traffic& traffic : of.traffic) sum = sum + traffic;
    report.workers.push_back({sum.bytes_sent, sum.bytes_received, sum.messages_sent, {}});
  }
  if (non_finite) {
    skip(describe(*non_finite, steps_done), report);
    for (WorkerReport& worker : report.workers) worker.skip_reason = report.skip_reason;
    return;
  }
  for (std::size_t s = 0; s < sections.size(); ++s) report_local_steps(s, report);
}

void VirtualWorkers::Impl::report_local_steps(std::size_t section, StepReport& report) {
  std::vector<StepNotes> notes;  // of each worker, or only worker 0's if all are the same
  guarded([&] {
    for (const Steps& steps : workers) {
      notes.push_back(end_local_step(steps[section]));
      if (steps[section].protocol.same_apply) break;
    }
  });
  for (std::size_t i = 0; i < notes.size(); ++i) {
    StepReport mine;
    mine.step = steps_done;
    note(notes[i], mine);
    if (!mine.skipped) continue;
    std::string& of_worker = report.workers[i].skip_reason;
    of_worker += (of_worker.empty() ? "" : "; ") + mine.skip_reason;
    if (report.skip_reason.ends_with(mine.skip_reason)) continue;
    report.skip_reason += (report.skipped ? "; " : "") + mine.skip_reason;
    report.skipped = true;
  }
}

VirtualWorkers::VirtualWorkers(Layout layout, OptimizerOptions options,
                               VirtualWorkersOptions workers)
    : Replica(std::make_unique<Impl>(std::move(layout), std::move(options), std::move(workers))) {}

VirtualWorkers::Impl& VirtualWorkers::impl() const noexcept { return static_cast<Impl&>(*impl_); }

void VirtualWorkers::hand_over(int worker, const Parameters& params, const Gradients& grads,
                               std::span<const bool> unused) {
  Impl& all = impl();
  const std::size_t w = all.checked(worker, "hand_over");
  all.check_usable();
  PRIDE_CHECK(!all.in_step || !all.frames[w].handed_over, "optimizer: virtual worker ", worker,
              " has handed over its gradients in this step already");
  all.check_flags(unused);
  all.place_gradients(all.workers[w], grads);
  if (!all.in_step) all.set_context(params, "hand_over");
  all.in_step = true;
  all.set_unused(all.workers[w], unused);
  all.guarded([&] {
    all.space.after(all.options.stream);
    all.hand_over(w);
    all.space.before(all.options.stream);  // the next worker's gradients may overwrite these
  });
}

StepReport VirtualWorkers::step(const Parameters& params) { return impl().step(params); }

void VirtualWorkers::to_worker(int worker, const Parameters& params) const {
  Impl& all = impl();
  const Impl::Steps& steps = all.workers[all.checked(worker, "to_worker")];
  all.place(params, "to_worker");
  all.for_local(steps, all.parameters->view(),
                [](LocalParameters& local, View x, std::span<const char> fixed) {
                  local.to_local(x, fixed);
                });
  all.publish();
}

void VirtualWorkers::add(std::vector<TensorSpec> tensors, std::vector<ParamGroup> groups) {
  Impl& all = impl();
  all.check_idle("add");
  PRIDE_CHECK(all.refusal.empty(), "optimizer: add() after a step that failed: ", all.refusal);
  auto [layout, options] = all.grown(std::move(tensors), std::move(groups));
  auto next = std::make_unique<Impl>(std::move(layout), std::move(options), all.asked);
  next->take_over(all);
  impl_ = std::move(next);
}

StateDict VirtualWorkers::save(int worker) const {
  return impl().save(impl().checked(worker, "save"));
}

}  // namespace pride
