// SPDX-License-Identifier: Apache-2.0
#include "train/participation.h"

#include <algorithm>
#include <cmath>

#include "pride/random_bits.h"
#include "train/streams.h"

namespace pride::train {

Participation::Participation(const TrainPlan& plan, int rank, std::int64_t period)
    : seed_(plan.options.seed),
      world_(static_cast<std::uint32_t>(plan.world)),
      drawn_(std::max(
          1u, static_cast<std::uint32_t>(std::lround(plan.options.participation * plan.world)))),
      rank_(static_cast<std::uint32_t>(rank)),
      period_(period) {}

bool Participation::takes_part(std::int64_t step) const {
  if (all()) return true;
  // Knuth's selection: draws each worker in turn with probability left / (workers not yet seen)
  PhiloxStream bits(seed_, streams::kParticipation, static_cast<std::uint64_t>(step / period_));
  std::uint32_t left = drawn_;
  for (std::uint32_t worker = 0; worker < rank_; ++worker) {
    if (bits.next_below(world_ - worker) < left) --left;
  }
  return bits.next_below(world_ - rank_) < left;
}

}  // namespace pride::train
