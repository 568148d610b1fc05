// The participating workers of each round, in a run that simulates workers that join and leave.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "pride/train/plan.h"

namespace pride::train {

// A round is the steps from one exchange to the next. In each one a number of workers is drawn by
// the seed, the same on all ranks: --participation times the workers, rounded, and at least one.
class Participation {
 public:
  // `period`: steps of a round.
  Participation(const TrainPlan& plan, int rank, std::int64_t period);

  bool takes_part(std::int64_t step) const;  // this rank, in the round of that step
  bool all() const noexcept { return drawn_ == world_; }

 private:
  std::uint64_t seed_;
  std::uint32_t world_, drawn_, rank_;
  std::int64_t period_;
};

}  // namespace pride::train
