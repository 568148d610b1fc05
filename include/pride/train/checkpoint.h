// Checkpoints: parameters, each rank's optimizer state, and what must agree to go on from them.
// SPDX-License-Identifier: Apache-2.0
//
// A folder OUT/checkpoints/step-<n> holds model.safetensors, state-rank<k>.safetensors for each
// rank (of personal tensors personal.safetensors) and checkpoint.json, which has a hash of each of
// them and of itself; it appears under that name once all of it is on disk.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pride/communicator.h"
#include "pride/layout.h"
#include "pride/optimizer.h"
#include "pride/tensors.h"
#include "pride/train/plan.h"

namespace pride::train {

// The parameters, without padding, under their own names.
void save_parameters(const std::filesystem::path& file, const Layout& layout,
                     std::span<const float> params);

// Throws DataError, naming file and tensor, if names or shapes differ; `params` is then unchanged.
void load_parameters(const std::filesystem::path& file, const Layout& layout,
                     std::span<float> params);

// What a checkpoint keeps, beside facts. The optimizer's tensors are the layout's first; the others
// are personal, and have one of their own.
struct Kept {
  const Layout& layout;
  std::span<const Tensor> params;  // all
  Optimizer& optimizer;
  Optimizer* personal = nullptr;
};

// model.safetensors in `folder`, and config.json where the task has one.
void save_model(const std::filesystem::path& folder, const Task& task, const Kept& kept);

// Then removes all but the newest options.keep_checkpoints checkpoints and the one of the lowest
// `loss`, which is that of an evaluation after the same step. Collective. Throws DataError.
void save_checkpoint(Communicator& comm, const TrainPlan& plan, const Kept& kept,
                     std::int64_t ahead, std::optional<double> loss = std::nullopt);

struct Resumed {
  std::int64_t step = 0;           // steps done
  int world = 0;                   // ranks that saved it
  std::int64_t ahead = 0;          // batches that the order of their data was ahead of the steps
  std::vector<std::string> notes;  // damaged checkpoints passed over, settings that have changed
};

// Loads this rank's part of the checkpoint that options.resume means, with options.resume_local
// from the states of all ranks: the folder itself, or the newest one below an --out folder that
// every rank finds undamaged. The ranks then compare the hash of their parameters with each other
// and with checkpoint.json. Collective. Throws InvalidArgument if the checkpoint is of another
// method, seed or step length, or, without options.resume_local, of another number of ranks;
// DataError, on all ranks, if there is none or a file is missing, damaged or of another checkpoint.
Resumed load_checkpoint(Communicator& comm, const TrainPlan& plan, const Kept& kept);

// True if options.out is the run that options.resume goes on with. Throws DataError.
bool resumes_in_place(const TrainOptions& options);

}  // namespace pride::train
