// How large buckets are where nobody said so: as the measured network asks for.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pride/communicator.h"
#include "pride/train/plan.h"
#include "train_names.h"

namespace pride::app {

// Sets plan.optimizer.bucket_coords and adds a note that says why, unless a flag did or there is no
// network (one rank, or threads). So with round_bytes, the option of methods that choose the route
// of a bucket. Measures for about a second. Collective; the same on all ranks.
void choose_bucket_size(Communicator& comm, TrainPlan& plan);

// The number of buckets with the least time on the way that nothing hides: each costs its
// latencies, and the last one is exposed, so sqrt(bytes_s / latency_s). At least 1; of buckets with
// at least 1,048,576 coordinates.
int buckets_for(double bytes_s, double latency_s, double coords);

}  // namespace pride::app
