// Checkpoints: parameters, each rank's optimizer state, and what must agree to go on from them.
// SPDX-License-Identifier: Apache-2.0
//
// A folder OUT/checkpoints/step-<n> holds model.safetensors, state-rank<k>.safetensors for each
// rank and checkpoint.json; it appears under that name once all of it is written.
#pragma once

#include <filesystem>
#include <span>

#include "pride/communicator.h"
#include "pride/layout.h"
#include "pride/optimizer.h"
#include "pride/train/plan.h"

namespace pride::train {

// The parameters, without padding, under their own names.
void save_parameters(const std::filesystem::path& file, const Layout& layout,
                     std::span<const float> params);

// model.safetensors in `folder`, and config.json where the task has one.
void save_model(const std::filesystem::path& folder, const Task& task, const Layout& layout,
                std::span<const float> params);

// Throws DataError, naming file and tensor, if names or shapes differ; `params` is then unchanged.
void load_parameters(const std::filesystem::path& file, const Layout& layout,
                     std::span<float> params);

// Collective. Throws DataError.
void save_checkpoint(Communicator& comm, const TrainPlan& plan, const Optimizer& optimizer,
                     std::span<const float> params, std::int64_t ahead);

// The checkpoint that --resume means: the folder itself, or the last complete one below an --out
// folder (one without checkpoint.json is not complete).
// Throws DataError if there is none.
std::filesystem::path find_checkpoint(const std::filesystem::path& folder);

struct Resumed {
  std::int64_t step = 0;   // steps done
  int world = 0;           // ranks that saved it
  std::int64_t ahead = 0;  // batches that the order of their data was ahead of the steps
};

// Loads this rank's part, with --resume-local from the states of all ranks; the ranks then compare
// the step of their states and the hash of their parameters with each other and with
// checkpoint.json. Collective. Throws InvalidArgument if the checkpoint is of another method, seed
// or step length, or, without --resume-local, of another number of ranks; DataError if a file is
// missing or broken, on all ranks if files of different steps are mixed.
Resumed load_checkpoint(Communicator& comm, const std::filesystem::path& folder,
                        const TrainPlan& plan, Optimizer& optimizer, std::span<float> params);

}  // namespace pride::train
