// SPDX-License-Identifier: Apache-2.0
#include "train/shares.h"

#include <algorithm>

namespace pride::train {

OptimizerOptions with_vote_weight(const TrainPlan& plan, const Sampler& sampler) {
  constexpr std::uint64_t kMostVotes = 65535;
  OptimizerOptions options = plan.optimizer;
  if (plan.options.vote_weight == "equal") return options;
  const std::uint64_t unit = (plan.task->n_samples() + kMostVotes - 1) / kMostVotes;
  options.vote_weight =
      static_cast<int>(std::clamp<std::uint64_t>(sampler.part_size() / unit, 1, kMostVotes));
  return options;
}

SamplerOptions sampler_options(const TrainPlan& plan, int number) {
  return {.sharding = plan.sharding,
          .seed = plan.options.seed,
          .rank = plan.options.shard.value_or(plan.shards > 1 ? number % plan.shards : number),
          .world = plan.shards};
}

}  // namespace pride::train
