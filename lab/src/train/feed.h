// A worker's batches, in the order of its run.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "pride/train/plan.h"
#include "train/participation.h"

namespace pride::train {

class Feed {
 public:
  // The plan must outlive it.
  Feed(const TrainPlan& plan, int number);

  const Sampler& sampler() const noexcept { return sampler_; }

  // Switches to the batches of the worker with this number.
  void renumber(int number);

  // Called before the first batch. The run continues after `step`, with data `ahead` batches ahead,
  // saved by `saved_by` workers (0: not resumed). `rounds` must outlive the feed.
  void begin(std::int64_t step, std::int64_t ahead, int saved_by, const Participation& rounds);

  // The next batch of this worker's steps. Requests as many further batches as the task wants in
  // advance.
  Batch next();

  std::int64_t ahead() const noexcept { return ahead_; }

 private:
  const TrainPlan& plan_;
  int number_;
  Sampler sampler_;
  std::unique_ptr<BatchQueue> queue_;
  std::vector<Draw> draws_;
  const Participation* rounds_ = nullptr;
  std::int64_t taken_ = 0, asked_ = 0;  // batches of the whole run, also before a resume
  std::int64_t ahead_ = 0;  // batches by which the data's order is ahead of the run, or behind
  std::size_t queued_ = 0;  // requested and not yet used
};

}  // namespace pride::train
