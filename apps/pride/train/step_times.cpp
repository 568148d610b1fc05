// Training steps without what surrounds them: no schedule, no metrics, no evaluation.
// SPDX-License-Identifier: Apache-2.0
#include "train/step_times.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "pride/train/trainer.h"
#include "train/bucket_size.h"
#include "train/evaluation.h"
#include "train/process.h"
#include "train/replica.h"
#include "train/settings/method_options.h"
#include "train/torch_errors.h"
#include "train_names.h"

namespace pride::app {
namespace {

using Clock = std::chrono::steady_clock;

class Runner {
 public:
  Runner(Communicator& comm, const StepBench& how)
      : comm_(comm),
        how_(how),
        plan_(make_plan(how.options, comm.size())),
        model_(make_model(plan_, device_of(plan_.options))),
        flat_(named_parameters(*model_, plan_.options.decay_all)) {
    Sampler sampler(plan_.task->n_samples(), plan_.task->labels(),
                    {.sharding = plan_.sharding,
                     .seed = plan_.options.seed,
                     .rank = comm.rank(),
                     .world = comm.size()});
    std::vector<Draw> draws(static_cast<std::size_t>(plan_.options.batch));
    sampler.draw(0, draws);
    batch_ = plan_.task->train_batch(draws);
    initial_.assign(flat_.params().begin(), flat_.params().end());
    add_rows();
  }

  std::vector<StepRow> run() {
    std::vector<Samples> samples(rows_.size());
    double total = 0;
    for (int round = -1; round < how_.least || total < how_.seconds; ++round) {
      for (std::size_t r = 0; r < rows_.size(); ++r) {
        if (round < 0) restore();
        const double slowest = timed(r);
        if (round < 0) {  // warms up
          check(r);
          continue;
        }
        samples[r].step.push_back(slowest);
        samples[r].encode.push_back(report_.encode_s);
        samples[r].exchange.push_back(report_.exchange_s);
        samples[r].apply.push_back(report_.apply_s);
        total += slowest;
      }
    }
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      rows_[r].times = times_of(std::move(samples[r].step));
      rows_[r].encode_s = slowest_median(samples[r].encode);
      rows_[r].exchange_s = slowest_median(samples[r].exchange);
      rows_[r].apply_s = slowest_median(samples[r].apply);
      rows_[r].samples_per_s =
          static_cast<double>(plan_.samples_per_step()) / rows_[r].times.median_s;
      rows_[r].bytes = largest_of(comm_, rows_[r].bytes);
    }
    return rows_;
  }

 private:
  struct Samples {
    std::vector<double> step, encode, exchange, apply;
  };

  double slowest_median(const std::vector<double>& seconds) {
    return largest_of(comm_, times_of(seconds).median_s);
  }

  void add_rows() {
    rows_.push_back({.name = kBackwardOnly});
    optimizers_.push_back(nullptr);
    if (!how_.methods.empty()) add_no_exchange();
    for (const std::string& method : how_.methods) {
      const MethodChoice choice = parse_method(method);
      TrainOptions options = how_.options;
      options.method = choice.name;
      options.method_options = choice.options;
      const bool can_overlap = how_.threads_may_talk && flat_.on_host();
      TrainPlan plan = make_plan(options, comm_.size(), plan_.task);
      choose_bucket_size(comm_, plan);
      OptimizerOptions optimizer = plan.optimizer;
      for (const bool overlap : {false, true}) {
        if (overlap && !can_overlap) continue;
        optimizer.overlap = overlap;
        optimizer.exchange_threads = how_.options.exchange_threads;
        rows_.push_back(
            {.name = method, .overlap = overlap, .bucket_coords = optimizer.bucket_coords});
        optimizers_.push_back(std::make_unique<Optimizer>(comm_, flat_.layout(), optimizer));
      }
    }
  }

  void add_no_exchange() {
    TrainOptions options = how_.options;
    options.method = "dlion-vote";  // alone, Lion itself
    options.overlap = false;
    rows_.push_back({.name = kNoExchange});
    optimizers_.push_back(std::make_unique<Optimizer>(*alone_.front(), flat_.layout(),
                                                      make_plan(options, 1, plan_.task).optimizer));
  }

  void restore() {
    std::ranges::copy(initial_, flat_.params().begin());
    flat_.push();
  }

  // After the first step of a row. Collective.
  void check(std::size_t row) {
    if (rows_[row].name == kBackwardOnly || rows_[row].name == kNoExchange) return;
    const std::uint64_t hash = param_hash(flat_.layout(), flat_.params());
    std::vector<std::uint64_t> all(static_cast<std::size_t>(comm_.size()));
    comm_.all_gather(std::as_bytes(std::span(&hash, 1)), std::as_writable_bytes(std::span(all)));
    if (!rows_[row].overlap) right_ = all.front();
    rows_[row].wrong_ranks =
        static_cast<int>(std::ranges::count_if(all, [&](std::uint64_t h) { return h != right_; }));
  }

  double timed(std::size_t row) {
    comm_.barrier();
    const auto start = Clock::now();
    Optimizer* optimizer = optimizers_[row].get();
    const bool overlap = rows_[row].overlap;
    flat_.zero_grad();
    const std::int64_t last = plan_.options.accumulate - 1;
    for (std::int64_t micro = 0; micro <= last; ++micro) {
      if (overlap && micro == last) flat_.begin_step(*optimizer);
      const at::Tensor loss = plan_.task->loss(*model_, batch_, 0);
      (last == 0 ? loss : loss / static_cast<double>(last + 1)).backward();
    }
    report_ = {};
    if (optimizer != nullptr) report_ = overlap ? flat_.finish_step() : flat_.step(*optimizer);
    rows_[row].bytes = static_cast<double>(report_.bytes_sent);
    return largest_of(comm_, seconds_since(start));
  }

  Communicator& comm_;
  const StepBench& how_;
  TrainPlan plan_;
  std::unique_ptr<Model> model_;
  FlatModule flat_;
  Batch batch_;
  std::vector<float> initial_;  // parameters
  std::uint64_t right_ = 0;     // their hash after the step without overlap
  std::vector<StepRow> rows_;
  StepReport report_;  // of the last step
  std::vector<std::unique_ptr<Communicator>> alone_ = make_thread_world(1);
  std::vector<std::unique_ptr<Optimizer>> optimizers_;  // of the rows; none: backward only
};

}  // namespace

std::vector<StepRow> bench_steps(Communicator& comm, const StepBench& how) {
  pin_threads();
  return with_short_errors([&] { return Runner(comm, how).run(); });
}

Layout model_layout(const TrainOptions& options) {
  return layout_of(*make_task(options)->model().make());
}

}  // namespace pride::app
