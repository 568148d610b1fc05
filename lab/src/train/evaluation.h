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

// The cross-entropy of each target of a batch (float32, on the CPU).
at::Tensor target_losses(Model& model, const Batch& batch);

// Rank b mod size() evaluates batch b. The ranks' sums are added in rank order, so the result is
// the same on all ranks and transports. Collective. `players` above 0: one rank evaluates all
// batches, and adds their sums as that many ranks would.
EvalSums evaluate(Communicator& comm, Model& model, const Task& task, const at::Device& device,
                  int players = 0);

}  // namespace pride::train
