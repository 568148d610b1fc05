// Construction of virtual workers, and the calls of their front door.
// SPDX-License-Identifier: Apache-2.0
#include "optimizer/virtual_workers.h"

#include <algorithm>
#include <utility>

#include "methods/registry.h"
#include "methods/vote_weights.h"
#include "optimizer/resharding.h"
#include "pride/comm/thread_comm.h"
#include "pride/error.h"

namespace pride {
namespace {

constexpr int kMostVirtualWorkers = 1024;  // as ranks of a world of threads

int checked(const VirtualWorkersOptions& workers) {
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
    : Replica::Impl(std::move(the_layout), std::move(the_options), checked(the_workers)),
      asked(std::move(the_workers)) {
  PRIDE_CHECK(!options.sum_of_parts,
              "optimizer: sum_of_parts is not supported with virtual workers, which need the whole "
              "model");
  PRIDE_CHECK(!options.before_apply,
              "optimizer: before_apply is not supported with virtual workers");
  std::vector<std::int64_t> given(asked.weights.begin(), asked.weights.end());
  given.resize(static_cast<std::size_t>(world), options.vote_weight);
  weights = vote_weights(options.method, method->protocol({.voters = world}), options.nodes, given);
  workers.resize(static_cast<std::size_t>(world));
  tables.clear();
  for (Worker& w : workers) {
    w.method = method.get();
    if (&w != &workers.front()) {
      w.own = make_method(options.method, {layout, world, options.options, options.nodes, space,
                                           options.orthogonalise});
      w.method = w.own.get();
      w.method->state().allocate_beside(method->state());
    }
    tables.push_back(&w.method->state());
    w.step.emplace(*w.method, buckets, space);
    w.flights.resize(buckets.size());
  }
}

VirtualWorkers::Impl::Worker& VirtualWorkers::Impl::worker(int number, const char* call) {
  PRIDE_CHECK(number >= 0 && number < world, "optimizer: ", call, "() of virtual worker ", number,
              ", there are ", world);
  return workers[static_cast<std::size_t>(number)];
}

std::size_t VirtualWorkers::Impl::frame_bytes() const {
  std::size_t bytes = 0;
  for (const Worker& w : workers) {
    for (const Flight& flight : w.flights) bytes += flight.capacity_bytes();
  }
  return bytes;
}

std::uint64_t VirtualWorkers::Impl::method_floats() const {
  std::uint64_t floats = method->state().floats();
  for (std::size_t i = 1; i < workers.size(); ++i) {
    floats += workers[i].method->state().own_floats();
  }
  return floats;
}

void VirtualWorkers::Impl::check_parameters() {
  for (const Worker& w : workers) {
    if (w.method->local() != nullptr) w.method->local()->begin(parameters->view());
  }
  params_checked = true;
}

void VirtualWorkers::Impl::move_server_state(std::span<const Bucket> from) {
  run_world(world, [&](Communicator& comm) {
    move_to_servers(comm, from, buckets,
                    tables[static_cast<std::size_t>(comm.rank())]->buffers(StateKind::kServer));
  });
}

// The state that handed-over gradients changed is overwritten.
void VirtualWorkers::Impl::after_load() noexcept {
  for (Worker& w : workers) w.handed_over = false;
  in_step = false;
}

StepReport VirtualWorkers::Impl::step(const Parameters& params) {
  check_usable();
  for (int i = 0; i < world; ++i) {
    PRIDE_CHECK(in_step && workers[static_cast<std::size_t>(i)].handed_over,
                "optimizer: virtual worker ", i, " of ", world,
                " has not handed over its gradients in step ", steps_done + 1);
  }
  place(params, "step");
  std::optional<NonFinite> non_finite;
  guarded([&] { non_finite = exchange_and_apply(parameters->view()); });
  in_step = false;
  StepReport report;
  report.step = steps_done;
  report_workers(non_finite, report);
  ++steps_done;
  publish();
  if (options.clip_global_norm > 0 && !non_finite) report.grad_norm = grad_norm;
  enter(workers.front().traffic, report);
  enter(timing, report);
  return report;
}

// Reports bytes, notes and skipped steps: a step of all workers, or local steps of some.
void VirtualWorkers::Impl::report_workers(const std::optional<NonFinite>& non_finite,
                                          StepReport& report) {
  for (const Worker& w : workers) {
    report.workers.push_back(
        {w.traffic.bytes_sent, w.traffic.bytes_received, w.traffic.messages_sent, {}});
  }
  if (non_finite) {
    skip(describe(*non_finite, steps_done), report);
    for (WorkerReport& worker : report.workers) worker.skip_reason = report.skip_reason;
    return;
  }
  std::vector<StepNotes> notes;  // of each worker, or only worker 0's if all are the same
  guarded([&] {
    for (Worker& w : workers) {
      notes.push_back(end_local_step(*w.method, w.ctx));
      if (protocol.same_apply) break;
    }
  });
  for (std::size_t i = 0; i < notes.size(); ++i) {
    StepReport mine;
    mine.step = steps_done;
    note(notes[i], mine);
    report.workers[i].skip_reason = mine.skip_reason;
    if (!mine.skipped || report.skip_reason.ends_with(mine.skip_reason)) continue;
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
  Impl::Worker& w = all.worker(worker, "hand_over");
  all.check_usable();
  PRIDE_CHECK(!all.in_step || !w.handed_over, "optimizer: virtual worker ", worker,
              " has handed over its gradients in this step already");
  all.check_flags(unused);
  all.place_gradients(grads);
  if (!all.in_step) all.set_context(params, "hand_over");
  all.in_step = true;
  all.set_unused(unused);
  all.guarded([&] {
    all.space.after(all.options.stream);
    all.hand_over(w, {.places = all.gradients.data(), .factor = all.gradient_factor});
    all.space.before(all.options.stream);  // the next worker's gradients may overwrite these
  });
}

StepReport VirtualWorkers::step(const Parameters& params) { return impl().step(params); }

void VirtualWorkers::to_worker(int worker, const Parameters& params) const {
  Impl& all = impl();
  const LocalParameters* const local = all.worker(worker, "to_worker").method->local();
  all.place(params, "to_worker");
  if (local != nullptr) local->to_local(all.parameters->view(), all.frozen);
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
  impl().worker(worker, "save");
  return impl().save(static_cast<std::size_t>(worker));
}

}  // namespace pride
