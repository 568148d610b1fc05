// A worker of a coordinator's run: its steps, and the rounds between them.
// SPDX-License-Identifier: Apache-2.0
#include "pride/run_worker.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "optimizer/central.h"
#include "optimizer/replica_impl.h"
#include "pride/error.h"

namespace pride {

struct RunWorker::Impl final : Replica::Impl {
  Impl(std::shared_ptr<CoordinatorClient> client, Layout the_layout, OptimizerOptions the_options,
       RunWorkerOptions run);

  int voter() const override { return central->number(); }
  void check_parameters() override;
  Cost cost_of(std::size_t section, std::int64_t step, bool mean) const override;
  std::size_t frame_bytes() const override;
  bool has_applied_nothing() const override { return !applied; }

  void check_client() const;
  void check_frozen() const;
  bool ends_round(std::int64_t step) const { return (step + 1) % central->period() == 0; }
  // Central changes the parameters by whole rounds, so steps_done is theirs also after an error.
  template <typename Body>
  void by_rounds(std::int64_t first, Body&& body) {
    std::int64_t round = first;
    is_whole = true;
    try {
      body(round);
    } catch (...) {
      if (round != first) steps_done = round * central->period();
      throw;
    }
    if (round != first) steps_done = round * central->period();
    is_whole = false;
  }
  StepReport step(const Parameters& params, const Gradients& grads, std::span<const bool> flags);
  std::optional<NonFinite> encode(StepTimes& times);
  void exchange_and_apply(StepTimes& times);
  void end_round(std::int64_t step, bool voted, StepReport& report);

  const bool may_join;
  std::unique_ptr<Central> central;
  Steps& steps;                 // by section
  std::vector<Flight> flights;  // by bucket
  bool applied = true;          // a part of the present step
};

RunWorker::Impl::Impl(std::shared_ptr<CoordinatorClient> client, Layout the_layout,
                      OptimizerOptions the_options, RunWorkerOptions run)
    : Replica::Impl(std::move(the_layout), std::move(the_options), 1),
      may_join(client != nullptr),
      steps(workers.front()),
      flights(sections.by_bucket().size()) {
  by_ballots = true;
  PRIDE_CHECK(!options.nodes.known(), "optimizer: nodes are not supported with a coordinator");
  for (const TensorSlot& slot : layout.tensors()) {
    PRIDE_CHECK(slot.to_whole == 0,
                "optimizer: a coordinator's worker needs the whole model, but '", slot.spec.name,
                "' is part of a tensor (first_coord ", *slot.spec.first_coord, ")");
  }
  PRIDE_CHECK(
      options.clip_global_norm == 0,
      "optimizer: clip_global_norm is not supported with a coordinator: its records contain no "
      "norm; clip each worker's own gradient instead (local clipping)");
  PRIDE_CHECK(
      !options.model_parallel_sum,
      "optimizer: model_parallel_sum is not supported with a coordinator, which needs the whole "
      "model");
  const std::int64_t weight = options.vote_weight;
  weights = votes_of({&weight, 1});
  central = std::make_unique<Central>(layout, sections, steps, options, std::move(client),
                                      std::move(run));
}

void RunWorker::Impl::check_client() const {
  PRIDE_CHECK(may_join, "optimizer: a RunWorker without a client can only replay()");
}

void RunWorker::Impl::check_parameters() {
  throw InvalidArgument(
      "optimizer: join the coordinator's run before the first step and after load(): "
      "RunWorker::join(), in C pride_optimizer_broadcast()");
}

// A coordinator's record has no flags of frozen tensors: workers that replay it would decay them.
void RunWorker::Impl::check_frozen() const {
  for (std::size_t t = 0; t < frozen.size(); ++t) {
    const TensorSpec& spec = layout.tensors()[t].spec;
    PRIDE_CHECK(frozen[t] == 0 || scalars[static_cast<std::size_t>(spec.group)].decay.same == 1,
                "optimizer: '", spec.name,
                "' is frozen and has weight decay, which is not supported with a ",
                "coordinator; leave out frozen tensors, or set their weight decay to 0");
  }
}

Cost RunWorker::Impl::cost_of(std::size_t section, std::int64_t step, bool mean) const {
  const std::int64_t period = central->period();
  if (mean) step += period - 1 - step % period;
  Cost cost{.exact = false, .bound = false};
  if (ends_round(step)) cost.bytes_up = central->ballot_bytes(step / period, section);
  if (!mean) return cost;
  const auto steps = static_cast<std::uint64_t>(period);
  cost.bytes_up = (cost.bytes_up + steps - 1) / steps;
  return cost;
}

std::size_t RunWorker::Impl::frame_bytes() const {
  std::size_t bytes = 0;
  for (const Flight& flight : flights) bytes += flight.capacity_bytes();
  return bytes;
}

// --- A step. -------------------------------------------------------------------------------------

StepReport RunWorker::Impl::step(const Parameters& params, const Gradients& grads,
                                 std::span<const bool> flags) {
  check_client();
  check_usable();
  check_flags(flags);
  is_whole = false;
  place_gradients(workers.front(), grads);
  set_context(params, "step");
  check_frozen();
  set_unused(workers.front(), flags);
  const Traffic before = central->traffic();
  StepTimes times;
  std::optional<NonFinite> non_finite;
  guarded([&] {
    space.after(options.stream);
    non_finite = encode(times);
    // a worker whose gradient is not finite sends no ballot
    if (!non_finite) exchange_and_apply(times);
  });
  StepReport report;
  end_step(non_finite, report);
  ++steps_done;
  if (ends_round(report.step)) end_round(report.step, !non_finite, report);
  publish();
  enter(central->traffic() - before, report);
  for (std::size_t s = 0; s < steps.size() && ends_round(report.step) && !non_finite; ++s) {
    section_traffic[s].bytes_sent = cost_of(s, report.step, false).bytes_up;
  }
  enter(times, report);
  return report;
}

// Encodes all buckets. Returns the first non-finite flag.
std::optional<NonFinite> RunWorker::Impl::encode(StepTimes& times) {
  const Stopwatch watch(times.encode_s);
  applied = std::ranges::any_of(steps, &SectionStep::is_local);
  for (SectionStep& step : steps) {
    step.grads = {.places = step.gradients.data(), .factor = gradient_factor};
    for (std::size_t t = step.unused.size(); t-- > 0;) {
      if (step.unused[t] == 0) step.method->tensor_ready(t, step.ctx, step.grads);
    }
    if (step.protocol.whole_gradient)
      step.buckets.encode_preliminary(step.ctx, step.grads, std::nullopt);
  }
  const auto& order = sections.by_bucket();
  for (std::size_t b = 0; b < flights.size(); ++b) {
    const SectionStep& step = steps[order[b].section];
    step.buckets.encode(order[b].index, step.ctx, step.grads, flights[b]);
  }
  for (std::size_t b = 0; b < flights.size(); ++b) {
    const SectionStep& step = steps[order[b].section];
    step.buckets.finish_frames(step.ctx, flights[b]);
    for (std::size_t k = 0; k < flights[b].parts.size(); ++k) step.take_flag(flights[b], k);
    if (flights[b].non_finite) return flights[b].non_finite;
  }
  return std::nullopt;
}

void RunWorker::Impl::exchange_and_apply(StepTimes& times) {
  auto results = Central::Results::kApply;
  if (ends_round(steps_done)) {
    const Stopwatch watch(times.exchange_s);
    is_whole = true;  // without a result nothing is applied
    results = central->exchange(parameters->view(), steps, flights);
    is_whole = false;
  }
  if (results == Central::Results::kNothing) return;
  if (options.before_apply) options.before_apply();
  const Stopwatch watch(times.apply_s);
  applied = true;
  for (std::size_t b = 0; b < flights.size(); ++b) {
    const auto& [section, index] = sections.by_bucket()[b];
    const SectionStep& step = steps[section];
    if (results == Central::Results::kReplay) {
      step.buckets.replay(index, flights[b], step.ctx, step.x);
    } else {
      step.buckets.apply(index, flights[b], step.ctx, step.x);
    }
  }
}

void RunWorker::Impl::end_round(std::int64_t step, bool voted, StepReport& report) {
  const std::int64_t first = step / central->period();
  steps_done = step;  // until the round is over
  guarded([&] {
    by_rounds(first, [&](std::int64_t& round) {
      central->finish(parameters->view(), round, voted, report.round.emplace());
    });
  });
  // the run's parameters may be those of the start of this round
  if (steps_done == step) steps_done = first * central->period();
}

// --- The front door. -----------------------------------------------------------------------------

RunWorker::RunWorker(std::shared_ptr<CoordinatorClient> client, Layout layout,
                     OptimizerOptions options, RunWorkerOptions run)
    : Replica(std::make_unique<Impl>(std::move(client), std::move(layout), std::move(options),
                                     std::move(run))) {}

RunWorker::Impl& RunWorker::impl() const noexcept { return static_cast<Impl&>(*impl_); }

StepReport RunWorker::step(const Parameters& params, const Gradients& grads,
                           std::span<const bool> unused) {
  return impl().step(params, grads, unused);
}

// A worker in the middle of a period drops its local steps if it has missed a round.
void RunWorker::join(const Parameters& params) {
  Impl& all = impl();
  all.check_client();
  all.place(params, "join");
  PRIDE_CHECK(all.refusal.empty(), "optimizer: join() after a step that failed: ", all.refusal);
  try {
    all.by_rounds(all.steps_done / all.central->period(),
                  [&](std::int64_t& round) { all.central->join(all.parameters->view(), round); });
  } catch (const CommError& e) {
    all.refusal = e.what();
    throw;
  }
  all.publish();
  all.params_checked = true;
}

void RunWorker::replay(const Parameters& params, std::span<const std::byte> record) {
  Impl& all = impl();
  all.place(params, "replay");
  const std::int64_t round = all.steps_done / all.central->period();
  all.central->replay(all.parameters->view(), round, record, concat("replay of round ", round));
  all.steps_done = (round + 1) * all.central->period();
  all.publish();
}

int RunWorker::number() const { return impl().central->number(); }

}  // namespace pride
