// One worker's run, or that of all virtual workers: the model, the data, the optimizer, the step
// loop.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "pride/optimizer.h"
#include "pride/run_worker.h"
#include "pride/torch/module_tensors.h"
#include "pride/train/checkpoint.h"
#include "pride/train/trainer.h"
#include "pride/virtual_workers.h"
#include "program/io/folder_lock.h"
#include "program/io/growing_file.h"
#include "train/feed.h"
#include "train/participation.h"
#include "train/personal.h"

namespace pride::train {

// True if a rank skipped the step. A step with an exchange is skipped by all ranks or by none.
inline bool skipped(const WorldStep& step) {
  return std::ranges::any_of(step.ranks, [](const RankStep& r) { return r.skipped != 0; });
}

class Worker {
 public:
  Worker(Communicator& comm, const TrainPlan& plan, const Observers& observers);

  TrainResult run();

 private:
  template <typename Call>
  void notify(const Call& call) {
    for (const auto& observer : observers_) call(*observer);
  }
  // Adds to the records of the run, which goes on if that fails.
  template <typename Call>
  void record(const Call& call) {
    for (const auto& observer : observers_) {
      try {
        call(*observer);
      } catch (const NotRecorded& error) {
        if (!std::exchange(told_of_records_, true)) warn(error);
      }
    }
  }
  void warn(const DataError& error) {
    notify([text = concat("warning: ", error.what(), "; the run goes on")](Observer& observer) {
      observer.on_notice(text);
    });
  }
  // What ends a run badly once its results are out: run() throws it.
  template <typename Body>
  void at_end(const Body& body) {
    try {
      body();
    } catch (...) {
      if (!failure_) failure_ = std::current_exception();
    }
  }
  // Workers of this rank: one, or all virtual workers.
  int n_players() const { return std::max(1, plan_.options.virtual_workers); }
  std::vector<Feed> make_feeds(int rank) const;
  std::string choose_place();
  void make_optimizer(Communicator& comm);
  void start();
  void join();
  std::string follow_coordinator();
  void lock_folder();
  void take_folder();
  WorldStep take_step();
  void check_interrupted(std::int64_t micro) const;
  double backward(Feed& feed, RankStep& mine, bool begins);
  float clip_factor_of(std::span<const ConstTensor> grads) const;
  StepReport step(RankStep& mine, std::span<const ParamGroup> groups);
  StepReport step_players(std::span<RankStep> players);
  void play(int player, RankStep& mine);
  StepReport sit_out();
  StepReport take_own_step(std::span<const Tensor> params, std::span<const ConstTensor> grads);
  WorldStep share(std::span<const RankStep> mine, double lr);
  void check_skips(const WorldStep& step);
  void take_common();
  template <typename Body>
  void with_common(const Body& body);
  void evaluate_now();
  void save_now(bool is_last);
  void add(const WorldStep& step);
  void end_early(const CommError& error);
  void finish();
  // True if workers that skip rounds never get the results of these.
  bool is_stale() const { return plan_.options.absent == "stale" && !rounds_[0].all(); }
  bool evaluated() const { return last_eval_ == optimizer_->steps_done(); }
  // The shared tensors in a table of all tensors.
  auto common(auto all) const { return all.first(optimizer_->layout().tensors().size()); }
  Kept kept(std::span<const Tensor> params) {
    return {tensors_.layout(), params, *optimizer_, personal_ ? &personal_->optimizer() : nullptr};
  }

  TrainPlan plan_;                         // its length may change: follow_coordinator()
  Observers observers_;                    // of rank 0
  std::unique_ptr<Communicator> control_;  // for metrics: separate from the method's traffic
  at::Device device_;
  std::unique_ptr<Model> model_;
  std::size_t n_personal_ = 0;
  ModuleTensors tensors_;
  std::vector<Feed> feeds_;  // by player
  double loss_ = 0;          // of this rank's gradient
  std::string place_;        // where the method runs, for the log; empty: on the CPU
  // of the shared tensors; without --personal of all. It is one of the three.
  std::unique_ptr<Replica> optimizer_;
  Optimizer* ranks_ = nullptr;
  VirtualWorkers* players_ = nullptr;
  RunWorker* run_ = nullptr;
  std::vector<Participation> rounds_;  // by player
  std::optional<Personal> personal_;
  std::chrono::steady_clock::time_point began_;
  TrainResult result_;
  std::optional<FolderLock> lock_;  // of options.out, on rank 0
  std::int64_t last_eval_ = -1;
  int skips_in_a_row_ = 0;
  std::string skip_reason_;  // of the last step; empty: not skipped
  double last_loss_ = 0;     // mean over the ranks
  bool told_of_records_ = false;
  std::exception_ptr failure_;  // the first of at_end()
};

}  // namespace pride::train
