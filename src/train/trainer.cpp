// SPDX-License-Identifier: Apache-2.0
#include "pride/train/trainer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "pride/coordinator.h"
#include "pride/error.h"
#include "pride/torch/module_tensors.h"
#include "pride/train/checkpoint.h"
#include "train/clock.h"
#include "train/evaluation.h"
#include "train/feed.h"
#include "train/hex.h"
#include "train/io/folder_lock.h"
#include "train/participation.h"
#include "train/personal.h"
#include "train/process.h"
#include "train/replica.h"
#include "train/run_folder.h"
#include "train/settings/settings.h"
#include "train/shares.h"
#include "train/torch_errors.h"

namespace pride::train {
namespace {

// After so many skipped steps in a row the loss is NaN for good, and the rest of the run wasted.
constexpr int kMostSkipsInARow = 20;

using Clock = std::chrono::steady_clock;

bool is_due(std::int64_t every, std::int64_t before, std::int64_t after) {
  return every > 0 && after / every > before / every;
}

// By a rank; in an exchange, by all.
bool skipped(const WorldStep& step) {
  return std::ranges::any_of(step.ranks, [](const RankStep& r) { return r.skipped != 0; });
}

class Worker {
 public:
  Worker(Communicator& comm, const TrainPlan& plan, const Observers& observers)
      : plan_(plan),
        observers_(comm.rank() == 0 ? observers : Observers()),
        control_(comm.duplicate()),
        device_(device_of(plan.options, comm)),
        model_(make_model(plan, device_)),
        tensors_(personal_last(named_parameters(*model_, plan.options.decay_all),
                               plan.options.personal, n_personal_)),
        feeds_(make_feeds(comm.rank())),
        optimizer_(comm, common_layout(tensors_.layout(), n_personal_), optimizer_options()) {
    for (int i = 0; i < n_players(); ++i) {
      rounds_.emplace_back(plan, comm.rank() + i, optimizer_.period());
    }
    control_->set_timeout(comm.timeout());
    if (n_personal_ > 0) personal_.emplace(tensors_.layout(), optimizer_.layout(), plan);
  }

  TrainResult run();

 private:
  template <typename Call>
  void notify(const Call& call) {
    for (const auto& observer : observers_) call(*observer);
  }
  // Of this rank: one, or all virtual workers.
  int n_players() const { return std::max(1, plan_.options.virtual_workers); }
  std::vector<Feed> make_feeds(int rank) const;
  OptimizerOptions optimizer_options();
  void start();
  void join();
  std::string follow_coordinator();
  void lock_folder();
  void take_folder();
  WorldStep take_step();
  double backward(Feed& feed, RankStep& mine, bool begins);
  StepReport step(RankStep& mine, double lr);
  StepReport step_players(std::span<RankStep> players);
  void play(int player, RankStep& mine);
  StepReport sit_out();
  WorldStep share(std::span<const RankStep> mine, double lr);
  void check_skips(const WorldStep& step);
  void take_common();
  template <typename Body>
  void with_common(const Body& body);
  void evaluate_now();
  void save_now();
  void add(const WorldStep& step);
  void finish();
  // Workers that sit out rounds never have their results.
  bool is_stale() const { return plan_.options.absent == "stale" && !rounds_[0].all(); }
  bool evaluated() const { return last_eval_ == optimizer_.steps_done(); }
  // Of a table of all tensors.
  auto common(auto all) const { return all.first(optimizer_.layout().tensors().size()); }
  Kept kept(std::span<const Tensor> params) {
    return {tensors_.layout(), params, optimizer_, personal_ ? &personal_->optimizer() : nullptr};
  }

  TrainPlan plan_;                         // its length may change: follow_coordinator()
  Observers observers_;                    // of rank 0
  std::unique_ptr<Communicator> control_;  // metrics: their bytes are not the method's
  at::Device device_;
  std::unique_ptr<Model> model_;
  std::size_t n_personal_ = 0;
  ModuleTensors tensors_;
  std::vector<Feed> feeds_;            // by player
  double loss_ = 0;                    // of this rank's gradient
  Optimizer optimizer_;                // of the tensors in common: all, without --personal
  std::vector<Participation> rounds_;  // by player
  std::optional<Personal> personal_;
  Clock::time_point began_;
  TrainResult result_;
  std::optional<FolderLock> lock_;  // of options.out, on rank 0
  std::int64_t last_eval_ = -1;
  int skips_in_a_row_ = 0;
  std::string skip_reason_;  // of the last one
  double last_loss_ = 0;     // mean over the ranks
};

TrainResult Worker::run() {
  start();
  const TrainOptions& o = plan_.options;
  bool stop = false;
  while (!stop && optimizer_.steps_done() < plan_.steps) {
    const std::int64_t before = optimizer_.steps_done();
    const WorldStep step = take_step();
    add(step);
    notify([&](Observer& observer) { observer.on_step(step); });
    check_skips(step);
    stop = step.interrupted();
    if (is_due(o.eval_every, before, step.step) && !stop) evaluate_now();
    if (is_due(o.save_every, before, step.step) || (stop && o.save_every > 0)) save_now();
  }
  result_.interrupted = optimizer_.steps_done() < plan_.steps;
  finish();
  return std::move(result_);
}

std::vector<Feed> Worker::make_feeds(int rank) const {
  std::vector<Feed> feeds;
  for (int i = 0; i < n_players(); ++i) feeds.emplace_back(plan_, rank + i);
  return feeds;
}

OptimizerOptions Worker::optimizer_options() {
  OptimizerOptions options = with_vote_weights(plan_, feeds_);
  if (options.coordinator) options.report_loss = [this] { return loss_; };
  return options;
}

// Takes over the length that the coordinator's operator has ordered. Returns what has changed.
std::string Worker::follow_coordinator() {
  if (!plan_.optimizer.coordinator) return {};
  const RunLength run = plan_.optimizer.coordinator->length();
  const std::int64_t last = run.last_step > 0 ? run.last_step : plan_.steps;
  if (run.steps > 0) plan_.schedule.total_steps = run.steps;
  if (std::exchange(plan_.steps, last) == last) return {};
  const std::int64_t all = plan_.schedule.total_steps;
  return last < all ? concat("the coordinator ends the run after step ", last, " of ", all)
                    : concat("by the coordinator's order the run has ", all, " steps");
}

// The coordinator's run, at the round that is open.
void Worker::join() {
  const std::int64_t before = optimizer_.steps_done();
  tensors_.change([&](auto all) { optimizer_.broadcast(common(all)); });
  const std::string change = follow_coordinator();
  const int number = optimizer_.worker_number();
  feeds_[0].renumber(number);
  result_.start.notes.push_back(concat(
      "worker ", number, " of the run at ", plan_.options.coordinator,
      optimizer_.steps_done() < plan_.steps
          ? concat(", from step ", optimizer_.steps_done() + 1, " on")
          : concat(", which is at its end (step ", optimizer_.steps_done(), ")"),
      optimizer_.steps_done() > before ? concat("; it was at step ", before, " before") : ""));
  if (!change.empty()) result_.start.notes.push_back(change);
}

void Worker::start() {
  RunStart& start = result_.start;
  const std::string& resume = plan_.options.resume;
  std::int64_t ahead = 0;
  const std::span<const Tensor> all = tensors_.parameters();
  optimizer_.place(common(all));  // masters of narrow parameters count as state
  if (personal_) personal_->place(all);
  if (!resume.empty()) {
    Resumed from;
    tensors_.change([&](auto params) {
      from = load_checkpoint(*control_, plan_, kept(params));
      optimizer_.to_local(common(params));
    });
    start.step = from.step;
    start.saved_by = from.world;
    start.notes = std::move(from.notes);
    ahead = from.ahead;
  }
  if (personal_) start.notes.push_back(personal_->note());
  if (is_stale()) {
    start.notes.push_back(
        "workers that miss results have parameters of their own: param_hash and "
        "model.safetensors are worker 0's");
  }
  if (plan_.optimizer.coordinator) {
    lock_folder();  // a second run here is to be refused before its name is taken from the first
    join();
  }
  for (std::size_t i = 0; i < feeds_.size(); ++i) {
    feeds_[i].begin(optimizer_.steps_done(), ahead, start.saved_by, rounds_[i]);
  }
  start.transport = plan_.optimizer.coordinator         ? "coordinator"
                    : plan_.options.virtual_workers > 0 ? "virtual"
                                                        : control_->transport();
  start.n_parameters = model_->n_parameters();
  start.state_floats =
      optimizer_.state_floats() + (personal_ ? personal_->optimizer().state_floats() : 0);
  start.cost = optimizer_.mean_cost(start.step);
  start.routes = optimizer_.routes();
  start.tensors = tensors_.layout().tensors();
  if (const std::int64_t lost = optimizer_.lost_of(plan_.steps); lost > 0) {
    start.notes.push_back(concat("workers exchange every ", optimizer_.period(),
                                 " steps: the last ", lost, " of ", plan_.steps,
                                 " will be in no result (with fragments: of one of them)"));
  }
  result_.steps = optimizer_.steps_done();
  result_.sent.resize(static_cast<std::size_t>(plan_.world));
  result_.received.resize(static_cast<std::size_t>(plan_.world));
  take_folder();
  notify([&](Observer& observer) { observer.on_start(plan_, start); });
  began_ = Clock::now();
}

// On rank 0.
void Worker::lock_folder() {
  const std::string& out = plan_.options.out;
  if (!out.empty() && !lock_) lock_.emplace(out, "run");
}

// Rank 0 may remove old results only once every rank is sure to begin, and no other run is there.
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

WorldStep Worker::take_step() {
  const double lr = plan_.peak_lr * plan_.schedule.factor(optimizer_.steps_done());
  for (int group = 0; group < optimizer_.layout().n_groups(); ++group)
    optimizer_.set_group({.lr = lr}, group);
  std::vector<RankStep> players(static_cast<std::size_t>(n_players()));
  RankStep& mine = players[0];
  const StepReport report =
      plan_.options.virtual_workers > 0 ? step_players(players) : step(mine, lr);
  mine.seconds.encode = report.encode_s;
  mine.seconds.exchange = report.exchange_s;
  mine.seconds.apply = report.apply_s;
  const std::string change = follow_coordinator();
  // nobody takes another step: what is on its way is this one's
  const bool last = optimizer_.steps_done() >= plan_.steps;
  const Traffic late = last ? optimizer_.finish_exchanges() : Traffic{};
  mine.bytes_sent = report.bytes_sent + late.bytes_sent;
  mine.bytes_received = report.bytes_received + late.bytes_received;
  mine.skipped = report.skipped ? 1 : 0;
  for (std::size_t i = 0; i < report.workers.size(); ++i) {
    players[i].bytes_sent = report.workers[i].bytes_sent;
    players[i].bytes_received = report.workers[i].bytes_received;
    players[i].skipped = report.workers[i].skip_reason.empty() ? 0 : 1;
  }
  skip_reason_ = report.skip_reason;
  mine.interrupted = interrupted() ? 1 : 0;
  WorldStep world = share(players, lr);
  world.grad_norm = report.grad_norm;
  world.diagnostics = report.diagnostics;
  world.note = report.note.empty() ? change : report.note;
  world.round = report.round;
  return world;
}

// the gradients of this rank's samples, then the method's step
StepReport Worker::step(RankStep& mine, double lr) {
  mine.absent = rounds_[0].takes_part(optimizer_.steps_done()) ? 0 : 1;
  if (mine.absent != 0) return sit_out();
  const Clock::time_point start = Clock::now();
  const std::int64_t last = plan_.options.accumulate - 1;
  const bool whole = plan_.options.clip_norm > 0 || personal_;  // gradients, before any step
  const bool overlap = plan_.optimizer.overlap && !whole;
  tensors_.zero_grad();
  for (std::int64_t micro = 0; micro <= last; ++micro) {
    const bool begins = overlap && micro == last;
    mine.loss += backward(feeds_[0], mine, begins) / static_cast<double>(plan_.options.accumulate);
  }
  loss_ = mine.loss;
  std::span<const ConstTensor> grads;
  float factor = 1;
  if (whole) grads = tensors_.gradients();
  if (plan_.options.clip_norm > 0) factor = clip_factor(grads, plan_.options.clip_norm);
  mine.seconds.backward = seconds_since(start) - mine.seconds.data;
  if (!whole) return overlap ? tensors_.finish_step() : tensors_.step(optimizer_);
  StepReport report;
  optimizer_.set_gradient_factor(factor);
  tensors_.change([&](auto all) {
    report = optimizer_.step(common(all), common(grads));
    if (personal_) personal_->step(lr, factor, all, grads, report);
  });
  return report;
}

// The gradients of each virtual worker, one after the other, then the step of all.
StepReport Worker::step_players(std::span<RankStep> players) {
  for (std::size_t i = 0; i < players.size(); ++i) play(static_cast<int>(i), players[i]);
  for (RankStep& other : players.subspan(1)) players[0].seconds += std::exchange(other.seconds, {});
  StepReport report;
  tensors_.change([&](auto all) { report = optimizer_.step_workers(all); });
  return report;
}

void Worker::play(int player, RankStep& mine) {
  const Clock::time_point start = Clock::now();
  const auto number = static_cast<std::size_t>(player);
  if (optimizer_.period() > 1) {
    tensors_.change([&](auto all) { optimizer_.to_worker(player, all); });
  }
  tensors_.zero_grad();
  mine.absent = rounds_[number].takes_part(optimizer_.steps_done()) ? 0 : 1;
  for (std::int64_t micro = 0; micro < plan_.options.accumulate && mine.absent == 0; ++micro) {
    mine.loss +=
        backward(feeds_[number], mine, false) / static_cast<double>(plan_.options.accumulate);
  }
  const auto params = tensors_.parameters();
  const auto grads = tensors_.gradients();
  const double limit = plan_.options.clip_norm;
  optimizer_.set_gradient_factor(limit > 0 ? clip_factor(grads, limit) : 1.0F);
  mine.seconds.backward = seconds_since(start) - mine.seconds.data;
  optimizer_.hand_over(player, params, grads);
}

// One batch's gradient, added to that of the step; the loss. `begins`: tensors go to the exchange
// as they become complete.
double Worker::backward(Feed& feed, RankStep& mine, bool begins) {
  const Clock::time_point start = Clock::now();
  const Batch batch = feed.next();
  mine.seconds.data += seconds_since(start);
  if (begins) tensors_.begin_step(optimizer_);
  const at::Tensor loss =
      plan_.task->loss(*model_, moved_to(device_, batch), plan_.options.label_smoothing);
  const double share = 1.0 / static_cast<double>(plan_.options.accumulate);
  (plan_.options.accumulate == 1 ? loss : loss * share).backward();
  return loss.item<double>();
}

// A step of the others, in which no tensor is used here.
StepReport Worker::sit_out() {
  tensors_.zero_grad();
  StepReport report;
  tensors_.change([&](auto all) {
    std::vector<float> before(is_stale() ? optimizer_.layout().flat_size() : 0);
    if (is_stale()) optimizer_.read(common(all), before);
    report = optimizer_.step(common(all), common(tensors_.gradients()));
    if (is_stale()) optimizer_.write(common(all), before);
  });
  return report;
}

WorldStep Worker::share(std::span<const RankStep> mine, double lr) {
  WorldStep world;
  world.step = optimizer_.steps_done();
  world.lr = lr;
  world.ranks.resize(static_cast<std::size_t>(control_->size()) * mine.size());
  const Communicator::Scope scope(*control_, concat("metrics of step ", world.step));
  control_->all_gather(std::as_bytes(mine), std::as_writable_bytes(std::span(world.ranks)));
  return world;
}

// all ranks have the metrics of all, so all of them throw
void Worker::check_skips(const WorldStep& step) {
  skips_in_a_row_ = skipped(step) ? skips_in_a_row_ + 1 : 0;
  if (skips_in_a_row_ < kMostSkipsInARow) return;
  throw NonFiniteGradient(concat("--non-finite skip: ", kMostSkipsInARow,
                                 " steps in a row were skipped, up to step ", step.step, ": ",
                                 skip_reason_));
}

// The model with the parameters that all ranks have alike.
void Worker::take_common() {
  tensors_.change([&](auto all) { optimizer_.to_common(common(all)); });
}

// Runs the body with them; then the rank goes on with its own.
template <typename Body>
void Worker::with_common(const Body& body) {
  take_common();
  body();
  tensors_.change([&](auto all) { optimizer_.to_local(common(all)); });
}

void Worker::evaluate_now() {
  const Clock::time_point start = Clock::now();
  EvalSums sums;
  with_common([&] {
    sums = evaluate(*control_, *model_, *plan_.task, device_, plan_.options.virtual_workers);
  });
  last_eval_ = optimizer_.steps_done();
  result_.metrics = plan_.task->eval_metrics(sums);
  const double seconds = seconds_since(start);
  result_.evaluation_s += seconds;
  if (result_.start.finished) return;  // it is in the records
  notify([&](Observer& observer) { observer.on_eval(last_eval_, result_.metrics, seconds); });
}

void Worker::save_now() {
  if (lock_) lock_->check();
  std::optional<double> loss;
  if (evaluated() && has_fact(result_.metrics, "loss")) loss = number_of(result_.metrics, "loss");
  with_common([&] {
    save_checkpoint(*control_, plan_, kept(tensors_.parameters()), feeds_[0].ahead(), loss);
  });
}

void Worker::finish() {
  if (!result_.interrupted && !evaluated()) evaluate_now();
  take_common();
  const std::uint64_t hash = optimizer_.hash(common(tensors_.parameters()));
  std::vector<std::uint64_t> all(static_cast<std::size_t>(control_->size()));
  control_->all_gather(std::as_bytes(std::span(&hash, 1)), std::as_writable_bytes(std::span(all)));
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r] == all[0] || is_stale()) continue;
    throw Error(concat("replicas differ after step ", optimizer_.steps_done(), ": param_hash ",
                       hex16(all[0]), " on rank 0, ", hex16(all[r]), " on rank ", r));
  }
  result_.param_hash = hash;
  result_.total_s = seconds_since(began_);
  if (result_.steps_run > 0) result_.metrics.emplace_back("train_loss", last_loss_);
  if (lock_) {
    lock_->check();
    save_model(plan_.options.out, *plan_.task, kept(tensors_.parameters()));
  }
  notify([&](Observer& observer) { observer.on_end(result_); });
}

}  // namespace

TrainResult train_rank(Communicator& comm, const TrainPlan& plan, const Observers& observers) {
  pin_threads();
  const std::chrono::duration<double> timeout(plan.options.timeout_s);
  comm.set_timeout(std::chrono::ceil<std::chrono::milliseconds>(timeout));
  return with_short_errors([&] { return Worker(comm, plan, observers).run(); });
}

}  // namespace pride::train
