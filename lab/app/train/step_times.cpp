// Training steps alone: no schedule, no metrics, no evaluation.
// SPDX-License-Identifier: Apache-2.0
#include "train/step_times.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "pride/comm/thread_comm.h"
#include "pride/digest.h"
#include "pride/error.h"
#include "pride/plan.h"
#include "pride/registry.h"
#include "pride/train/trainer.h"
#include "program/bench/network.h"
#include "program/settings.h"
#include "program/table.h"
#include "program/units.h"
#include "train/replica.h"
#include "train/torch_errors.h"

namespace pride::app {
namespace {

class StepRunner {
 public:
  StepRunner(Communicator& comm, const StepBench& how)
      : comm_(comm),
        how_(how),
        plan_(make_plan(how.options, comm.size())),
        device_(device_of(plan_.options, comm)),
        model_(make_model(plan_, device_)),
        tensors_(named_parameters(*model_, plan_.options)) {
    Sampler sampler(plan_.task->n_samples(), plan_.task->labels(),
                    {.sharding = plan_.sharding,
                     .seed = plan_.options.seed,
                     .rank = comm.rank(),
                     .world = comm.size()});
    std::vector<Draw> draws(static_cast<std::size_t>(plan_.options.batch));
    sampler.draw(0, draws);
    batch_ = moved_to(device_, plan_.task->train_batch(draws));
    for (const auto& p : model_->parameters()) initial_.push_back(p.tensor.detach().clone());
    add_steps();
  }

  std::vector<StepRow> run() {
    const StepParams params{.restore = [&] { restore(); }, .hash = [&] { return hash(); }};
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
                        wait();
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
        if (overlap && !how_.threads_may_talk) continue;
        plan.optimizer.overlap = overlap;
        plan.optimizer.exchange_threads = how_.options.exchange_threads;
        add(method, comm_, plan.optimizer);
      }
    }
  }

  void add_no_exchange() {
    TrainOptions options = how_.options;
    options.method = "dlion-vote";  // with one rank this is Lion
    options.overlap = false;
    add(kNoExchange, *alone_.front(), make_plan(options, 1, plan_.task).optimizer);
    steps_.back().row.bucket_coords = 0;  // so that time_steps() compares no hashes
  }

  void add(const std::string& name, Communicator& comm, OptimizerOptions options) {
    choose_place(options);
    const auto optimizer = std::make_shared<Optimizer>(comm, tensors_.layout(), options);
    const StepRow row{
        .name = name, .overlap = options.overlap, .bucket_coords = options.bucket_coords};
    steps_.push_back({row,
                      [this, optimizer, overlap = options.overlap] {
                        backward(overlap ? optimizer.get() : nullptr);
                        StepReport report =
                            overlap ? tensors_.finish_step() : tensors_.step(*optimizer);
                        wait();
                        return report;
                      },
                      [this, options]() mutable { choose_place(options); }});
  }

  void choose_place(OptimizerOptions& options) {
    tensors_.run_on(run_on_of(how_.options), options,
                    how_.options.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat);
  }

  // Waits for the GPU: calls only queue its work.
  void wait() const {
    if (device_.is_cpu()) return;
    const c10::impl::VirtualGuardImpl guard(device_.type());
    guard.synchronizeStream(guard.getStream(device_));
  }

  void restore() {
    const c10::NoGradGuard no_grad;
    const auto& parameters = model_->parameters();
    for (std::size_t i = 0; i < initial_.size(); ++i) parameters[i].tensor.copy_(initial_[i]);
  }

  // A digest of what must be equal on all ranks.
  std::uint64_t hash() {
    Digest digest;
    for (const ModelParameter& p : model_->parameters()) {
      const at::Tensor values = p.tensor.detach().cpu().contiguous();
      digest.bytes({static_cast<const std::byte*>(values.data_ptr()), values.nbytes()});
    }
    return digest.value();
  }

  // The step of `overlapped`, if there is one, begins in the last backward.
  void backward(Optimizer* overlapped) {
    tensors_.zero_grad();
    const std::int64_t last = plan_.options.accumulate - 1;
    for (std::int64_t micro = 0; micro <= last; ++micro) {
      if (overlapped != nullptr && micro == last) tensors_.begin_step(*overlapped);
      const at::Tensor loss = plan_.task->loss(*model_, batch_, 0);
      (last == 0 ? loss : loss / static_cast<double>(last + 1)).backward();
    }
  }

  Communicator& comm_;
  const StepBench& how_;
  TrainPlan plan_;
  at::Device device_;
  std::unique_ptr<Model> model_;
  ModuleTensors tensors_;
  Batch batch_;
  std::vector<at::Tensor> initial_;  // values of the model's parameters
  std::vector<std::unique_ptr<Communicator>> alone_ = make_thread_world(1);
  std::vector<TimedStep> steps_;
};

}  // namespace

std::vector<StepRow> bench_steps(Communicator& comm, const StepBench& how) {
  pin_threads();
  return with_short_errors([&] { return StepRunner(comm, how).run(); });
}

Layout model_layout(const TrainOptions& options) {
  return layout_of(*make_task(options)->model().make(), options);
}

namespace {

// Coordinates of the smallest bucket. A bucket costs more than its latencies: its threads, on all
// ranks, must each get a core several times while backward keeps the cores busy.
constexpr double kSmallest = 1 << 20;
constexpr double kCounted = 1e6;  // coordinates whose bytes are counted; more are extrapolated

// Bytes per step of the rank that sends most.
double bytes_per_step(const PlanMethod& method, int world, double coords) {
  const double some = std::min(coords, kCounted);
  return bytes_of(method, world, some, static_cast<std::size_t>(some)) * (coords / some);
}

// The methods of all groups.
PlanMethod method_of(const OptimizerOptions& all) { return {all.method, all.options, all.groups}; }

// Sets bandwidth_delay_bytes of the measured network where a method chooses routes by it. True if
// one does.
bool set_bandwidth_delay_bytes(const NetworkModel& network, TrainPlan& plan) {
  OptimizerOptions& all = plan.optimizer;
  PlanMethod chosen = on_network(method_of(all), network, plan.world);
  const bool any = chosen.options != all.options ||
                   !std::ranges::equal(chosen.groups, all.groups, {}, &ParamGroup::options,
                                       &ParamGroup::options);
  all.options = std::move(chosen.options);
  all.groups = std::move(chosen.groups);
  return any;
}

// Of all sections together; the slowest section's number of phases.
int best_number(const NetworkModel& network, const TrainPlan& plan, const Layout& layout) {
  const auto coords = static_cast<double>(layout.flat_size());
  const auto sections = sections_of(method_of(plan.optimizer), layout, plan.world);
  double bytes_s = 0;
  for (const PlanSection& s : sections) {
    const auto own = static_cast<double>(s.tensors.flat_size());
    bytes_s += bytes_per_step(s.method, plan.world, own) / network.bytes_per_s;
  }
  const double phase_s = network.latency_s + network.message_s * std::max(0, plan.world - 2);
  const auto number = [&](int phases) { return buckets_for(bytes_s, phases * phase_s, coords); };
  const auto phases_of = [&](double n) {
    int most = 0;
    for (const PlanSection& s : sections) {
      const auto bucket = std::min(static_cast<std::size_t>(coords / n), s.tensors.flat_size());
      most = std::max(most, route_of(s.method, plan.world, bucket).phases);
    }
    return most;
  };
  const int n = number(phases_of(1));
  return number(phases_of(n));  // buckets of that size may take another route
}

}  // namespace

int buckets_for(double bytes_s, double latency_s, double coords) {
  const double most = std::max(1.0, std::floor(coords / kSmallest));
  if (latency_s <= 0) return static_cast<int>(most);
  return static_cast<int>(std::clamp(std::round(std::sqrt(bytes_s / latency_s)), 1.0, most));
}

void choose_bucket_size(Communicator& comm, TrainPlan& plan) {
  const TrainOptions& o = plan.options;
  if (o.bucket_mb || o.bucket_coords || comm.size() == 1 || comm.transport() == "threads") return;
  // includes the tensors' alignment; without it the rest would be an extra bucket
  const Layout layout = layout_of(*plan.task->model().make(), o);
  const auto coords = static_cast<double>(layout.flat_size());
  const NetworkFacts facts = measure_network(comm, kBriefly);
  NetworkModel network{facts.latency_s, facts.message_s, facts.goodput, facts.cpu_s_per_byte};
  comm.broadcast(std::as_writable_bytes(std::span(&network, 1)), 0);
  const bool chooses = set_bandwidth_delay_bytes(network, plan);
  const int n = best_number(network, plan, layout);
  plan.optimizer.bucket_coords = static_cast<std::size_t>(std::ceil(coords / n));
  plan.notes.push_back(concat(n, n == 1 ? " bucket of " : " buckets of ",
                              grouped(static_cast<double>(plan.optimizer.bucket_coords)),
                              " coordinates, for ", time_text(network.latency_s), " latency and ",
                              bandwidth_text(network.bytes_per_s),
                              " goodput; --bucket-mb sets another size"));
  if (!chooses) return;
  plan.notes.push_back(
      concat("route by bandwidth_delay_bytes=", bandwidth_delay_bytes(network, plan.world),
             ", latency times goodput; --method-opt route=sharded|one-shot sets it"));
}

}  // namespace pride::app
