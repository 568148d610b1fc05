// What of the data is a worker's, and how many votes it has by it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "pride/optimizer.h"
#include "pride/train/plan.h"
#include "pride/train/sampler.h"
#include "train/feed.h"

namespace pride::train {

// The plan's, with --vote-weight samples the size of the rank's part, in units that let all parts
// together stay at 65535: exact of so many samples.
// Of virtual workers: of each.
OptimizerOptions with_vote_weights(const TrainPlan& plan, std::span<const Feed> feeds);

// The part of the data that a rank draws from; with a coordinator that of its number, which it
// learns when it joins.
SamplerOptions sampler_options(const TrainPlan& plan, int number);

}  // namespace pride::train
