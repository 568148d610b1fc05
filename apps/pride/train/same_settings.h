// Start-up check of a job of several processes: was every one asked for the same run?
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pride/communicator.h"
#include "train/plan.h"

namespace pride::app {

// Compares, over all ranks, every setting that to_json names, the data by its hash and the planned
// number of steps. Ranks may differ in --quiet, --json, --log-every, --overwrite and --config, and,
// unless there are checkpoints to write, in --out. Throws InvalidArgument on all ranks, naming the
// first setting that differs and the ranks that differ from rank 0. Collective.
void check_same_settings(Communicator& comm, const TrainPlan& plan);

}  // namespace pride::app
