// A worker's part of the data, and its votes in proportion to that part.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "pride/train/plan.h"
#include "pride/train/sampler.h"
#include "train/feed.h"

namespace pride::train {

// With --vote-weight samples a rank's votes are the size of its
// part, in units for which the sum of all parts is at most 65535: exact up to that many samples.
// Returns those of each feed; empty: all are equal.
std::vector<int> vote_weights_of(const TrainPlan& plan, std::span<const Feed> feeds);

// A rank's part of the data; with a coordinator the part of its number, known once it joins.
SamplerOptions sampler_options(const TrainPlan& plan, int number);

}  // namespace pride::train
