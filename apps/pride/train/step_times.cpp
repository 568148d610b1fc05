// Training steps without what surrounds them: no schedule, no metrics, no evaluation.
// SPDX-License-Identifier: Apache-2.0
#include "train/step_times.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>

#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "pride/train/trainer.h"
#include "train/bucket_size.h"
#include "train/replica.h"
#include "train/settings/method_options.h"
#include "train/torch_errors.h"
#include "train_names.h"

namespace pride::app {
namespace {

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
    add_steps();
  }

  std::vector<StepRow> run() {
    const StepParams params{.restore = [&] { restore(); },
                            .hash = [&] { return param_hash(flat_.layout(), flat_.params()); }};
    auto rows = time_steps(comm_, std::move(steps_), params, how_.seconds, how_.least);
    for (StepRow& row : rows) {
      row.samples_per_s = static_cast<double>(plan_.samples_per_step()) / row.times.median_s;
    }
    return rows;
  }

 private:
  void add_steps() {
    steps_.push_back({{.name = kBackwardOnly}, [&] {
                        backward(nullptr);
                        return StepReport{};
                      }});
    if (!how_.methods.empty()) add_no_exchange();
    for (const std::string& method : how_.methods) {
      const MethodChoice choice = parse_method(method);
      TrainOptions options = how_.options;
      options.method = choice.name;
      options.method_options = choice.options;
      TrainPlan plan = make_plan(options, comm_.size(), plan_.task);
      choose_bucket_size(comm_, plan);
      for (const bool overlap : {false, true}) {
        if (overlap && !(how_.threads_may_talk && flat_.on_host())) continue;
        plan.optimizer.overlap = overlap;
        plan.optimizer.exchange_threads = how_.options.exchange_threads;
        add(method, comm_, plan.optimizer);
      }
    }
  }

  void add_no_exchange() {
    TrainOptions options = how_.options;
    options.method = "dlion-vote";  // alone, Lion itself
    options.overlap = false;
    add(kNoExchange, *alone_.front(), make_plan(options, 1, plan_.task).optimizer);
    steps_.back().row.bucket_coords = 0;  // no ranks to be equal with
  }

  void add(const std::string& name, Communicator& comm, const OptimizerOptions& options) {
    const auto optimizer = std::make_shared<Optimizer>(comm, flat_.layout(), options);
    const StepRow row{
        .name = name, .overlap = options.overlap, .bucket_coords = options.bucket_coords};
    steps_.push_back({row, [this, optimizer, overlap = options.overlap] {
                        backward(overlap ? optimizer.get() : nullptr);
                        return overlap ? flat_.finish_step() : flat_.step(*optimizer);
                      }});
  }

  void restore() {
    std::ranges::copy(initial_, flat_.params().begin());
    flat_.push();
  }

  // The step of `overlapped`, if there is one, begins in the last backward.
  void backward(Optimizer* overlapped) {
    flat_.zero_grad();
    const std::int64_t last = plan_.options.accumulate - 1;
    for (std::int64_t micro = 0; micro <= last; ++micro) {
      if (overlapped != nullptr && micro == last) flat_.begin_step(*overlapped);
      const at::Tensor loss = plan_.task->loss(*model_, batch_, 0);
      (last == 0 ? loss : loss / static_cast<double>(last + 1)).backward();
    }
  }

  Communicator& comm_;
  const StepBench& how_;
  TrainPlan plan_;
  std::unique_ptr<Model> model_;
  FlatModule flat_;
  Batch batch_;
  std::vector<float> initial_;  // parameters
  std::vector<std::unique_ptr<Communicator>> alone_ = make_thread_world(1);
  std::vector<TimedStep> steps_;
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
