// SPDX-License-Identifier: Apache-2.0
#include "train/shares.h"

#include <algorithm>

namespace pride::train {

std::vector<int> vote_weights_of(const TrainPlan& plan, std::span<const Feed> feeds) {
  constexpr std::uint64_t kMostVotes = 65535;
  if (plan.options.vote_weight == "equal") return {};
  const std::uint64_t unit = (plan.task->n_samples() + kMostVotes - 1) / kMostVotes;
  std::vector<int> weights;
  for (const Feed& feed : feeds) {
    const std::uint64_t votes = feed.sampler().part_size() / unit;
    weights.push_back(static_cast<int>(std::clamp<std::uint64_t>(votes, 1, kMostVotes)));
  }
  return weights;
}

SamplerOptions sampler_options(const TrainPlan& plan, int number) {
  return {.sharding = plan.sharding,
          .seed = plan.options.seed,
          .rank = plan.options.shard.value_or(plan.shards > 1 ? number % plan.shards : number),
          .world = plan.shards};
}

}  // namespace pride::train
