// Evaluation: sums over the evaluation set, whose batches are divided among the ranks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pride/communicator.h"
#include "pride/train/model.h"
#include "pride/train/task.h"

namespace pride::train {

// Mean cross-entropy over the targets of a batch, with gradient. `smoothing` of each target is
// spread over all classes.
at::Tensor mean_loss(Model& model, const Batch& batch, double smoothing = 0);

// Of each target of a batch (float32, on the CPU).
at::Tensor target_losses(Model& model, const Batch& batch);

// Batch b is rank b mod size()'s work; the ranks' sums are added in rank order, so the result is
// the same on all of them and on every transport. Collective. `players` above 0: a rank alone, with
// the sums of as many ranks.
EvalSums evaluate(Communicator& comm, Model& model, const Task& task, const at::Device& device,
                  int players = 0);

}  // namespace pride::train
