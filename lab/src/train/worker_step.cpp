// A worker's steps: gradients of its samples, or of those of all virtual workers, then the method's
// step.
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "pride/error.h"
#include "program/clock.h"
#include "train/process.h"
#include "train/replica.h"
#include "train/worker.h"

namespace pride::train {
namespace {

// Skipped steps in a row after which the run is given up.
constexpr int kMostSkipsInARow = 20;

using Clock = std::chrono::steady_clock;

}  // namespace

WorldStep Worker::take_step() {
  const double lr = plan_.peak_lr * plan_.schedule.factor(optimizer_->steps_done());
  const auto now = plan_.groups_at(optimizer_->steps_done());
  for (int group = 0; group < optimizer_->layout().n_groups(); ++group) {
    optimizer_->set_group(now[static_cast<std::size_t>(group)], group);
  }
  std::vector<RankStep> players(static_cast<std::size_t>(n_players()));
  RankStep& mine = players[0];
  const StepReport report = players_ ? step_players(players) : step(mine, now);
  mine.seconds.encode = report.encode_s;
  mine.seconds.exchange = report.exchange_s;
  mine.seconds.apply = report.apply_s;
  const std::string change = follow_coordinator();
  // the last step also counts the exchanges still in flight
  const bool last = optimizer_->steps_done() >= plan_.steps;
  const Traffic late = last && ranks_ ? ranks_->finish_exchanges() : Traffic{};
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
  world.note = report.note.empty() ? change : report.note;
  world.round = report.round;
  return world;
}

// the gradients of this rank's samples, then the method's step
StepReport Worker::step(RankStep& mine, std::span<const ParamGroup> groups) {
  mine.absent = rounds_[0].takes_part(optimizer_->steps_done()) ? 0 : 1;
  if (mine.absent != 0) return sit_out();
  const Clock::time_point start = Clock::now();
  const std::int64_t last = plan_.options.accumulate - 1;
  const bool whole = plan_.options.clip_norm > 0 || run_;  // all gradients before the step
  const bool overlap = plan_.optimizer.overlap && !whole;
  tensors_.zero_grad();
  for (std::int64_t micro = 0; micro <= last; ++micro) {
    check_interrupted(micro);
    const bool begins = overlap && micro == last;
    mine.loss += backward(feeds_[0], mine, begins) / static_cast<double>(plan_.options.accumulate);
  }
  loss_ = mine.loss;
  std::span<const ConstTensor> grads;
  float factor = 1;
  if (whole) grads = tensors_.gradients();
  if (whole) factor = clip_factor_of(grads);
  mine.seconds.backward = seconds_since(start) - mine.seconds.data;
  if (!whole) return overlap ? tensors_.finish_step() : tensors_.step(*ranks_);
  StepReport report;
  optimizer_->set_gradient_factor(factor);
  tensors_.change([&](auto all) {
    report = take_own_step(common(all), common(grads));
    if (personal_) personal_->step(groups, factor, all, grads, report);
  });
  return report;
}

// Between the batches of a long step a worker alone can end at once: nothing has changed yet.
void Worker::check_interrupted(std::int64_t micro) const {
  if (micro == 0 || control_->size() > 1 || !interrupted()) return;
  throw CommError(concat("step ", optimizer_->steps_done() + 1, ": interrupted"));
}

// The gradients of each virtual worker, one after the other, then the step of all.
StepReport Worker::step_players(std::span<RankStep> players) {
  for (std::size_t i = 0; i < players.size(); ++i) play(static_cast<int>(i), players[i]);
  for (RankStep& other : players.subspan(1)) players[0].seconds += std::exchange(other.seconds, {});
  StepReport report;
  tensors_.change([&](auto all) { report = players_->step(all); });
  return report;
}

void Worker::play(int player, RankStep& mine) {
  const Clock::time_point start = Clock::now();
  const auto number = static_cast<std::size_t>(player);
  if (optimizer_->method().period > 1) {
    tensors_.change([&](auto all) { players_->to_worker(player, all); });
  }
  tensors_.zero_grad();
  mine.absent = rounds_[number].takes_part(optimizer_->steps_done()) ? 0 : 1;
  for (std::int64_t micro = 0; micro < plan_.options.accumulate && mine.absent == 0; ++micro) {
    mine.loss +=
        backward(feeds_[number], mine, false) / static_cast<double>(plan_.options.accumulate);
  }
  const auto grads = tensors_.gradients();
  optimizer_->set_gradient_factor(clip_factor_of(grads));
  mine.seconds.backward = seconds_since(start) - mine.seconds.data;
  tensors_.read([&](auto params) { players_->hand_over(player, params, grads); });
}

// The factor of local clipping.
float Worker::clip_factor_of(std::span<const ConstTensor> grads) const {
  const double limit = plan_.options.clip_norm;
  if (limit <= 0) return 1;
  return clip_factor(tensors_.is_on_device() ? gradient_norm(*model_) : norm(grads), limit);
}

// Adds one batch's gradient to the step's; returns the loss. `begins`: tensors go to the exchange
// as they become complete.
double Worker::backward(Feed& feed, RankStep& mine, bool begins) {
  const Clock::time_point start = Clock::now();
  const Batch batch = feed.next();
  mine.seconds.data += seconds_since(start);
  if (begins) tensors_.begin_step(*ranks_);
  const at::Tensor loss =
      plan_.task->loss(*model_, moved_to(device_, batch), plan_.options.label_smoothing);
  const double share = 1.0 / static_cast<double>(plan_.options.accumulate);
  (plan_.options.accumulate == 1 ? loss : loss * share).backward();
  return loss.item<double>();
}

StepReport Worker::take_own_step(std::span<const Tensor> params,
                                 std::span<const ConstTensor> grads) {
  return run_ ? run_->step(params, grads) : ranks_->step(params, grads);
}

// A round that this worker skips: it steps with all tensors unused.
StepReport Worker::sit_out() {
  tensors_.zero_grad();
  StepReport report;
  tensors_.change([&](auto all) {
    std::vector<float> before(is_stale() ? optimizer_->layout().flat_size() : 0);
    if (is_stale()) optimizer_->read(common(all), before);
    report = take_own_step(common(all), common(tensors_.gradients()));
    if (is_stale()) optimizer_->write(common(all), before);
  });
  return report;
}

WorldStep Worker::share(std::span<const RankStep> mine, double lr) {
  WorldStep world;
  world.step = optimizer_->steps_done();
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

}  // namespace pride::train
