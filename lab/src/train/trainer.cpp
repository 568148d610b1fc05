// A run from its start to its end: checkpoints, evaluations, records. Its steps: worker_step.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "pride/coordinator.h"
#include "pride/error.h"
#include "program/clock.h"
#include "program/hex.h"
#include "program/settings.h"
#include "train/evaluation.h"
#include "train/process.h"
#include "train/replica.h"
#include "train/run_folder.h"
#include "train/shares.h"
#include "train/torch_errors.h"
#include "train/worker.h"

namespace pride::train {
namespace {

bool is_due(std::int64_t every, std::int64_t before, std::int64_t after) {
  return every > 0 && after / every > before / every;
}

// Of the method and of masters.
std::uint64_t state_floats(const Replica& optimizer) {
  const MemoryUse use = optimizer.memory();
  return (use.state + use.masters) / sizeof(float);
}

// The section's tensors.
Layout part_of(const Layout& all, const SectionReport& section) {
  std::vector<TensorSpec> specs;
  for (const TensorSlot& slot : all.tensors()) {
    if (std::ranges::count(section.groups, slot.spec.group) > 0) specs.push_back(slot.spec);
  }
  return Layout(std::move(specs));
}

}  // namespace

Worker::Worker(Communicator& comm, const TrainPlan& plan, const Observers& observers)
    : plan_(plan),
      observers_(comm.rank() == 0 ? observers : Observers()),
      control_(comm.duplicate()),
      device_(device_of(plan.options, comm)),
      model_(make_model(plan, device_)),
      tensors_(personal_last(named_parameters(*model_, plan.options), plan.options.personal,
                             n_personal_)),
      feeds_(make_feeds(comm.rank())) {
  make_optimizer(comm);
  for (int i = 0; i < n_players(); ++i) {
    rounds_.emplace_back(plan, comm.rank() + i, optimizer_->method().period);
  }
  control_->set_timeout(comm.timeout());
  if (n_personal_ > 0) personal_.emplace(tensors_.layout(), optimizer_->layout(), plan_);
}

TrainResult Worker::run() {
  start();
  const TrainOptions& o = plan_.options;
  bool stop = false;
  while (!stop && optimizer_->steps_done() < plan_.steps) {
    const std::int64_t before = optimizer_->steps_done();
    WorldStep step;
    try {
      step = take_step();
    } catch (const CommError& error) {
      if (control_->size() > 1 || !interrupted()) throw;
      end_early(error);
      break;
    }
    add(step);
    record([&](Observer& observer) { observer.on_step(step); });
    check_skips(step);
    stop = step.interrupted();
    if (is_due(o.eval_every, before, step.step) && !stop) evaluate_now();
    if (is_due(o.save_every, before, step.step) || (stop && o.save_every > 0)) {
      save_now(stop || step.step >= plan_.steps);
    }
  }
  result_.interrupted = optimizer_->steps_done() < plan_.steps;
  finish();
  if (failure_) std::rethrow_exception(failure_);
  return std::move(result_);
}

std::vector<Feed> Worker::make_feeds(int rank) const {
  std::vector<Feed> feeds;
  for (int i = 0; i < n_players(); ++i) feeds.emplace_back(plan_, rank + i);
  return feeds;
}

// Sets in plan_.optimizer where all optimizers of this worker run. Returns a line about it if the
// model is on a GPU. Matrix products use the model's type.
std::string Worker::choose_place() {
  const bool narrow = plan_.options.dtype == "bfloat16";
  const std::string reason = tensors_.run_on(run_on_of(plan_.options), plan_.optimizer,
                                             narrow ? at::kBFloat16 : at::kFloat);
  if (tensors_.is_on_device()) return concat("the method runs on ", tensors_.device_name());
  if (reason.empty()) return "";
  return concat("gradients are copied to the host, where the method runs: ", reason);
}

void Worker::make_optimizer(Communicator& comm) {
  place_ = choose_place();
  Layout layout = common_layout(tensors_.layout(), n_personal_, plan_.optimizer);
  OptimizerOptions options = plan_.optimizer;
  std::vector<int> weights = vote_weights_of(plan_, feeds_);
  if (!weights.empty()) options.vote_weight = weights.front();
  if (plan_.coordinator) {
    auto made = std::make_unique<RunWorker>(
        plan_.coordinator, std::move(layout), std::move(options),
        RunWorkerOptions{.settings = plan_.run_settings, .report_loss = [this] { return loss_; }});
    run_ = made.get();
    optimizer_ = std::move(made);
  } else if (plan_.options.virtual_workers > 0) {
    auto made =
        std::make_unique<VirtualWorkers>(std::move(layout), std::move(options),
                                         VirtualWorkersOptions{n_players(), std::move(weights)});
    players_ = made.get();
    optimizer_ = std::move(made);
  } else {
    auto made = std::make_unique<Optimizer>(comm, std::move(layout), std::move(options));
    ranks_ = made.get();
    optimizer_ = std::move(made);
  }
}

// Adopts the length ordered by the coordinator's operator. Returns what changed.
std::string Worker::follow_coordinator() {
  if (!plan_.coordinator) return {};
  const RunLength run = plan_.coordinator->length();
  const std::int64_t last = run.last_step > 0 ? run.last_step : plan_.steps;
  if (run.steps > 0) plan_.schedule.total_steps = run.steps;
  if (std::exchange(plan_.steps, last) == last) return {};
  const std::int64_t all = plan_.schedule.total_steps;
  return last < all ? concat("the coordinator ends the run after step ", last, " of ", all)
                    : concat("by the coordinator's order the run has ", all, " steps");
}

// Joins the coordinator's run at the open round.
void Worker::join() {
  const std::int64_t before = optimizer_->steps_done();
  tensors_.change([&](auto all) { run_->join(common(all)); });
  const std::string change = follow_coordinator();
  const int number = run_->number();
  feeds_[0].renumber(number);
  result_.start.notes.push_back(concat(
      "worker ", number, " of the run at ", plan_.options.coordinator,
      optimizer_->steps_done() < plan_.steps
          ? concat(", from step ", optimizer_->steps_done() + 1, " on")
          : concat(", which is at its end (step ", optimizer_->steps_done(), ")"),
      optimizer_->steps_done() > before ? concat("; it was at step ", before, " before") : ""));
  if (!change.empty()) result_.start.notes.push_back(change);
}

void Worker::start() {
  RunStart& start = result_.start;
  const std::string& resume = plan_.options.resume;
  std::int64_t ahead = 0;
  tensors_.read([&](auto all) {
    optimizer_->place(common(all));  // masters of narrow parameters count as state
    if (personal_) personal_->place(all);
  });
  if (!resume.empty()) {
    Resumed from;
    tensors_.change([&](auto params) {
      from = load_checkpoint(*control_, plan_, kept(params));
      optimizer_->to_local(common(params));
    });
    start.step = from.step;
    start.saved_by = from.world;
    start.notes = std::move(from.notes);
    ahead = from.ahead;
  }
  if (!place_.empty()) start.notes.push_back(place_);
  if (personal_) start.notes.push_back(personal_->note());
  if (is_stale()) {
    start.notes.push_back(
        "workers that miss results have their own parameters: param_hash and model.safetensors are "
        "worker 0's");
  }
  if (plan_.coordinator) {
    lock_folder();  // refuse a second run here before it replaces the first one's session
    join();
  }
  for (std::size_t i = 0; i < feeds_.size(); ++i) {
    feeds_[i].begin(optimizer_->steps_done(), ahead, start.saved_by, rounds_[i]);
  }
  start.transport = plan_.coordinator                   ? "coordinator"
                    : plan_.options.virtual_workers > 0 ? "virtual"
                                                        : control_->transport();
  start.n_parameters = model_->n_parameters();
  start.state_floats =
      state_floats(*optimizer_) + (personal_ ? state_floats(personal_->optimizer()) : 0);
  start.cost = optimizer_->mean_cost(start.step);
  start.routes = optimizer_->routes();
  start.sections = optimizer_->sections(start.step);
  std::int64_t lost = 0;
  for (const SectionReport& section : start.sections) {
    const Layout part = part_of(optimizer_->layout(), section);
    const Layout& named = personal_ ? tensors_.layout() : part;  // then there is one section
    const std::string text = matrices_of(section.method, named, section.options).text;
    start.matrices += (start.matrices.empty() || text.empty() ? "" : "\n") + text;
    lost = std::max(lost, lost_steps(section.method, part, section.options, plan_.steps));
  }
  if (lost > 0) {
    start.notes.push_back(concat("workers exchange every ", optimizer_->method().period,
                                 " steps: the last ", lost, " of ", plan_.steps,
                                 " are never exchanged (with fragments: of one fragment)"));
  }
  result_.steps = optimizer_->steps_done();
  result_.sent.resize(static_cast<std::size_t>(plan_.world));
  result_.received.resize(static_cast<std::size_t>(plan_.world));
  take_folder();
  notify([&](Observer& observer) { observer.on_start(plan_, start); });
  began_ = std::chrono::steady_clock::now();
}

// Called on rank 0 only.
void Worker::lock_folder() {
  const std::string& out = plan_.options.out;
  if (!out.empty() && !lock_) lock_.emplace(out, "run");
}

// Rank 0 may remove old results only if every rank will start and no other run is in the folder.
void Worker::take_folder() {
  const TrainOptions& o = plan_.options;
  RunStart& start = result_.start;
  if (o.save_every > 0) check_shared_folder(*control_, o.out);
  control_->barrier();
  if (control_->rank() == 0 && !o.out.empty()) {
    lock_folder();
    start.finished = resumes_in_place(o) && start.step >= plan_.steps;
    if (!start.finished) make_room(o, start.step, start.notes);
  }
  control_->barrier();
}

void Worker::add(const WorldStep& step) {
  ++result_.steps_run;
  result_.steps_skipped += skipped(step) ? 1 : 0;
  result_.steps = step.step;
  result_.seconds += step.max_seconds();
  last_loss_ = step.mean_loss();
  for (std::size_t r = 0; r < step.ranks.size(); ++r) {
    result_.sent[r] += step.ranks[r].bytes_sent;
    result_.received[r] += step.ranks[r].bytes_received;
  }
}

// Puts the common parameters into the model.
void Worker::take_common() {
  tensors_.change([&](auto all) { optimizer_->to_common(common(all)); });
}

// Runs the body with the common parameters; then the rank continues with its own.
template <typename Body>
void Worker::with_common(const Body& body) {
  take_common();
  body();
  tensors_.change([&](auto all) { optimizer_->to_local(common(all)); });
}

void Worker::evaluate_now() {
  const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  EvalSums sums;
  with_common([&] {
    sums = evaluate(*control_, *model_, *plan_.task, device_, plan_.options.virtual_workers);
  });
  last_eval_ = optimizer_->steps_done();
  result_.metrics = plan_.task->eval_metrics(sums);
  const double seconds = seconds_since(start);
  result_.evaluation_s += seconds;
  if (result_.start.finished) return;  // the records have this evaluation
  record([&](Observer& observer) { observer.on_eval(last_eval_, result_.metrics, seconds); });
}

// Only the last checkpoint of a run must succeed; its results come first.
void Worker::save_now(bool is_last) {
  if (lock_) lock_->check();
  std::optional<double> loss;
  if (evaluated() && has_fact(result_.metrics, "loss")) loss = number_of(result_.metrics, "loss");
  with_common([&] {
    const auto save = [&] {
      save_checkpoint(*control_, plan_, kept(tensors_.parameters()), feeds_[0].ahead(), loss);
    };
    if (is_last) return at_end(save);
    try {
      save();
    } catch (const DataError& error) {  // on all ranks
      warn(error);
    }
  });
}

// After a step that was interrupted. Parameters are those of steps_done(); momenta may have its
// gradient already.
void Worker::end_early(const CommError& error) {
  result_.steps = optimizer_->steps_done();
  if (plan_.options.save_every > 0) save_now(true);
  notify([&](Observer& observer) { observer.on_notice(error.what()); });
}

void Worker::finish() {
  if (!result_.interrupted && !evaluated()) evaluate_now();
  take_common();
  const std::uint64_t hash = optimizer_->hash(common(tensors_.parameters()));
  std::vector<std::uint64_t> all(static_cast<std::size_t>(control_->size()));
  control_->all_gather(std::as_bytes(std::span(&hash, 1)), std::as_writable_bytes(std::span(all)));
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r] == all[0] || is_stale()) continue;
    throw Error(concat("replicas differ after step ", optimizer_->steps_done(), ": param_hash ",
                       hex16(all[0]), " on rank 0, ", hex16(all[r]), " on rank ", r));
  }
  result_.param_hash = hash;
  result_.sections = optimizer_->sections(std::max<std::int64_t>(optimizer_->steps_done() - 1, 0));
  result_.total_s = seconds_since(began_);
  if (result_.steps_run > 0) result_.metrics.emplace_back("train_loss", last_loss_);
  if (lock_) {
    lock_->check();
    at_end([&] { save_model(plan_.options.out, *plan_.task, kept(tensors_.parameters())); });
  }
  for (const auto& observer : observers_) at_end([&] { observer->on_end(result_); });
}

TrainResult train_rank(Communicator& comm, const TrainPlan& plan, const Observers& observers) {
  pin_threads();
  const std::chrono::duration<double> timeout(plan.options.timeout_s);
  comm.set_timeout(std::chrono::ceil<std::chrono::milliseconds>(timeout));
  return with_short_errors([&] { return Worker(comm, plan, observers).run(); });
}

}  // namespace pride::train
