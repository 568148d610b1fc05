// Checkpoints: parameters, each rank's optimizer state, and values that must match on resume.
// SPDX-License-Identifier: Apache-2.0
//
// A folder OUT/checkpoints/step-<n> holds model.safetensors, state-rank<k>.safetensors for each
// rank, personal.safetensors if there are personal tensors, and checkpoint.json with a hash of each
// file and of itself. The folder gets its name once all of it is on disk.
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
#include "pride/virtual_workers.h"

namespace pride::train {

// The parameters, without padding, under their own names.
void save_parameters(const std::filesystem::path& file, const Layout& layout,
                     std::span<const float> params);

// Throws DataError, naming file and tensor, if names or shapes differ; `params` is then unchanged.
void load_parameters(const std::filesystem::path& file, const Layout& layout,
                     std::span<float> params);

// The tensors and optimizers of a checkpoint. The first tensors of the layout are `optimizer`'s.
// The rest is personal and has the optimizer `personal`.
struct Kept {
  const Layout& layout;
  std::span<const Tensor> params;  // all
  Replica& optimizer;
  Replica* personal = nullptr;
};

// Writes model.safetensors to `folder`, and config.json if the task has one.
void save_model(const std::filesystem::path& folder, const Task& task, const Kept& kept);

// Writes a checkpoint. Then keeps the newest options.keep_checkpoints and the one with the lowest
// `loss` (of an evaluation after its step), and removes the others. Collective. Throws DataError.
void save_checkpoint(Communicator& comm, const TrainPlan& plan, const Kept& kept,
                     std::int64_t ahead, std::optional<double> loss = std::nullopt);

struct Resumed {
  std::int64_t step = 0;           // steps done
  int world = 0;                   // ranks that saved it
  std::int64_t ahead = 0;          // batches by which the data were ahead of the steps
  std::vector<std::string> notes;  // skipped damaged checkpoints, changed settings
};

// Loads this rank's part of a checkpoint; with options.resume_local, from the states of all ranks.
// options.resume is its folder, or an --out folder: then the newest checkpoint that is undamaged on
// every rank. The ranks then compare the hash of their parameters with each other and with
// checkpoint.json. Collective. Throws InvalidArgument if the checkpoint is of another method, seed
// or step length, or, without options.resume_local, of another number of ranks; DataError, on all
// ranks, if there is none or a file is missing, damaged or of another checkpoint.
Resumed load_checkpoint(Communicator& comm, const TrainPlan& plan, const Kept& kept);

// True if options.out is the run that options.resume continues. Throws DataError.
bool resumes_in_place(const TrainOptions& options);

}  // namespace pride::train
