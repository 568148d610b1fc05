// Recorder: what rank 0 writes down of a run: progress, metrics.jsonl, summary.json.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "io/tensorboard.h"
#include "pride/optimizer.h"
#include "train/plan.h"
#include "train/progress.h"
#include "train/step_stats.h"

namespace pride::app {

// Makes the folder --out. Refuses one with results, unless --overwrite is given (Recorder::start
// then removes them) or the run resumes from that very folder (Recorder::start then removes the
// metrics of later steps than the checkpoint's). The same for the event files of --tensorboard.
// Removes nothing. Throws InvalidArgument,
// DataError.
void check_out_folder(const TrainOptions& options);

// What is known of a run before its first step.
struct RunStart {
  std::int64_t step = 0;  // steps done already, by the run that is resumed
  int saved_by = 0;       // its workers; 0: none is resumed
  std::string transport;
  std::int64_t n_parameters = 0;
  std::uint64_t state_floats = 0;
  Cost cost;                          // per step
  std::map<std::string, int> routes;  // in how many buckets; empty: alone
  std::vector<TensorSlot> tensors;
};

class Recorder {
 public:
  explicit Recorder(const TrainPlan& plan);

  // Call when nothing but the first step is left to do: results that --overwrite replaces go now.
  void start(const RunStart& start);
  void on_step(const WorldStep& step);
  void on_eval(std::int64_t step, const EvalSums& sums, double seconds);
  void note(const std::string& text) { progress_.note(text); }

  // Writes summary.json and returns it.
  const nlohmann::ordered_json& finish(std::uint64_t param_hash, bool interrupted);
  const nlohmann::ordered_json& summary() const noexcept { return summary_; }

 private:
  void write(const nlohmann::ordered_json& record);
  void write_events(const WorldStep& step);
  nlohmann::ordered_json diagnostics_json(const WorldStep& step) const;
  nlohmann::ordered_json bytes_json() const;

  const TrainPlan& plan_;
  Progress progress_;
  std::ofstream metrics_;
  std::optional<EventFile> events_;  // with --tensorboard
  std::chrono::steady_clock::time_point began_;
  RunStart start_;
  std::int64_t last_step_ = 0, steps_run_ = 0, steps_skipped_ = 0;
  double last_loss_ = 0, eval_seconds_ = 0;
  StageTimes seconds_;  // of the slowest rank of each step
  std::vector<std::uint64_t> sent_, received_;
  nlohmann::ordered_json last_eval_ = nlohmann::ordered_json::object();
  nlohmann::ordered_json summary_;
};

}  // namespace pride::app
