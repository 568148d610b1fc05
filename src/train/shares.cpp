// SPDX-License-Identifier: Apache-2.0
#include "train/shares.h"

#include <algorithm>

namespace pride::train {

OptimizerOptions with_vote_weights(const TrainPlan& plan, std::span<const Feed> feeds) {
  constexpr std::uint64_t kMostVotes = 65535;
  OptimizerOptions options = plan.optimizer;
  if (plan.options.vote_weight == "equal") return options;
  const std::uint64_t unit = (plan.task->n_samples() + kMostVotes - 1) / kMostVotes;
  std::vector<int> weights;
  for (const Feed& feed : feeds) {
    const std::uint64_t votes = feed.sampler().part_size() / unit;
    weights.push_back(static_cast<int>(std::clamp<std::uint64_t>(votes, 1, kMostVotes)));
  }
  options.vote_weight = weights.front();
  if (options.virtual_workers > 0) options.worker_weights = std::move(weights);
  return options;
}

SamplerOptions sampler_options(const TrainPlan& plan, int number) {
  return {.sharding = plan.sharding,
          .seed = plan.options.seed,
          .rank = plan.options.shard.value_or(plan.shards > 1 ? number % plan.shards : number),
          .world = plan.shards};
}

}  // namespace pride::train
