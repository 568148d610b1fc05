// Observers: reports of a run during training and at its end.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pride/cost.h"
#include "pride/optimizer.h"
#include "pride/train/facts.h"
#include "pride/train/plan.h"

namespace pride::train {

// Seconds of one step by stage. `data`: waiting for the batch, or making it. `backward`: forward,
// backward, clipping.
struct StageTimes {
  double data = 0, backward = 0, encode = 0, exchange = 0, apply = 0;

  void operator+=(const StageTimes& other);
};

inline constexpr std::pair<const char*, double StageTimes::*> kStages[] = {
    {"data", &StageTimes::data},
    {"backward", &StageTimes::backward},
    {"encode", &StageTimes::encode},
    {"exchange", &StageTimes::exchange},
    {"apply", &StageTimes::apply}};

inline void StageTimes::operator+=(const StageTimes& other) {
  for (const auto& [name, stage] : kStages) this->*stage += other.*stage;
}

// Travels between ranks as bytes.
struct RankStep {
  double loss = 0;  // mean over this rank's samples
  StageTimes seconds;
  std::uint64_t bytes_sent = 0, bytes_received = 0;
  std::uint32_t interrupted = 0;  // this rank was asked to stop
  std::uint32_t skipped = 0;      // the step was dropped for a non-finite gradient
  std::uint64_t absent = 0;       // this rank skipped the step (--participation) and has no loss
};

struct WorldStep {
  std::int64_t step = 0;  // steps done after it
  double lr = 0;
  std::optional<double> grad_norm;   // of the mean gradient, if it is clipped
  std::string note;                  // a line for the log
  std::optional<RoundReport> round;  // in steps that end a coordinator's round
  std::vector<RankStep> ranks;       // one or more

  // over the participating ranks
  double mean_loss() const {
    double sum = 0, n = 0;
    for (const RankStep& r : ranks) {
      sum += r.loss;
      n += r.absent == 0;
    }
    return sum / n;
  }
  bool interrupted() const {
    return std::ranges::any_of(ranks, [](const RankStep& r) { return r.interrupted != 0; });
  }
  std::uint64_t max_bytes_sent() const {
    return std::ranges::max(ranks, {}, &RankStep::bytes_sent).bytes_sent;
  }
  std::uint64_t max_bytes_received() const {
    return std::ranges::max(ranks, {}, &RankStep::bytes_received).bytes_received;
  }
  // of the slowest rank, stage by stage
  StageTimes max_seconds() const {
    StageTimes most;
    for (const RankStep& r : ranks) {
      for (const auto& [name, s] : kStages) most.*s = std::max(most.*s, r.seconds.*s);
    }
    return most;
  }
};

// Facts about a run before its first step.
struct RunStart {
  std::int64_t step = 0;           // steps done by the resumed run
  int saved_by = 0;                // workers of the resumed run; 0: not resumed
  bool finished = false;           // no step is left, and options.out has the results
  std::vector<std::string> notes;  // skipped damaged checkpoints, changed settings
  std::string transport;
  std::int64_t n_parameters = 0;
  std::uint64_t state_floats = 0;
  Cost cost;                          // per step
  std::map<std::string, int> routes;  // number of buckets per route; empty: one rank
  std::string matrices;               // Matrices::text; a line for each section that has one
  std::vector<SectionReport>
      sections;  // with costs of the first step; one if all tensors have one method
};

// The result of a run.
struct TrainResult {
  RunStart start;
  std::int64_t steps = 0, steps_run = 0, steps_skipped = 0;  // including steps before a resume
  bool interrupted = false;
  std::vector<std::uint64_t> sent, received;  // bytes, by rank
  StageTimes seconds;                         // of the slowest rank of each step
  double total_s = 0, evaluation_s = 0;
  Facts metrics;                        // of the last evaluation, and train_loss of the last step
  std::vector<SectionReport> sections;  // with costs and bytes of the last step
  std::uint64_t param_hash = 0;

  double step_s() const {
    return std::max(total_s - evaluation_s, 1e-9) /
           static_cast<double>(std::max<std::int64_t>(steps_run, 1));
  }
};

// Called on rank 0 by the training thread. An exception ends the run; from on_end() once all
// observers were called.
class Observer {
 public:
  virtual ~Observer() = default;

  // Called with a line for the user: the run waits for a coordinator that it cannot reach, or
  // cannot write a checkpoint or a record.
  virtual void on_notice(const std::string&) {}
  // Called right before the first step. The plan lives until on_end() has returned.
  virtual void on_start(const TrainPlan&, const RunStart&) {}
  virtual void on_step(const WorldStep&) {}
  virtual void on_eval(std::int64_t /*step*/, const Facts& /*metrics*/, double /*seconds*/) {}
  virtual void on_end(const TrainResult&) {}
};

using Observers = std::vector<std::shared_ptr<Observer>>;

// Progress on standard error: on a terminal one line that is rewritten, otherwise a line every
// options.log_every steps; and lines about the data, the run, evaluations and the method's
// decisions.
std::shared_ptr<Observer> progress_line();

// Only notices, on standard error.
std::shared_ptr<Observer> notices();

// metrics.jsonl and summary.json in options.out. on_start() throws InvalidArgument if it is empty.
std::shared_ptr<Observer> json_lines();

// An event file of TensorBoard in options.tensorboard. Throws InvalidArgument if it is empty.
std::shared_ptr<Observer> tensorboard_events();

// The observers that the options request.
Observers observers_for(const TrainOptions& options);

// Makes the folder options.out. Refuses a folder with results, unless options.overwrite is set
// (which removes them when the run begins) or the run resumes from this folder (json_lines() then
// removes the metrics of steps after the checkpoint). The same for the event files of
// options.tensorboard. Removes nothing. Throws InvalidArgument, DataError.
void check_out_folder(const TrainOptions& options);

// The content of summary.json.
std::string summary_json(const TrainPlan& plan, const TrainResult& result);

}  // namespace pride::train
