// One worker's run: its model, its data, the step loop.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pride/communicator.h"
#include "train/plan.h"
#include "train/recorder.h"

namespace pride::app {

// The longest wait of `comm` from now on is --timeout.
void allow_waits(Communicator& comm, const TrainOptions& options);

// Trains as rank comm.rank(). Collective: every rank of `comm` calls it with the same plan, rank 0
// with the recorder, the others with nullptr. Returns true if the run was interrupted.
// Throws what the optimizer, the communicator and the files throw.
bool train_rank(Communicator& comm, const TrainPlan& plan, Recorder* recorder);

}  // namespace pride::app
