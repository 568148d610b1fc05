// replay: recorded gradients through a method, the real exchange included.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pride/optimizer.h"
#include "replay/recording.h"
#include "train/io/safetensors.h"
#include "train_names.h"

namespace pride::app {

struct ReplayOptions {
  OptimizerOptions optimizer;         // its first group is for all tensors; others are replaced
  std::vector<std::string> no_decay;  // globs of names whose weight decay is 0
};

struct ReplayResult {
  std::map<std::string, SafeTensor> params;  // "param.<name>" (steps, shape), after each step
  std::size_t n_coords = 0;
  std::int64_t skipped_steps = 0;  // non-finite gradients under NonFinitePolicy::kSkip
  std::uint64_t bytes_sent = 0;    // by all ranks in all steps
  std::uint64_t param_hash = 0;    // of the last parameters

  // Mean bytes that a rank sends in a step; none without steps.
  std::optional<double> bytes_per_step_and_rank;
  // The same over the bytes of an fp32 ring all-reduce, 2 (N-1)/N 4 n_coords; none where that is 0.
  std::optional<double> ratio_to_fp32_ring;
};

// Runs the recording's steps with a thread for each worker. After each step all ranks' parameters
// are compared bit by bit; a difference throws Error, naming step, rank, tensor and coordinate.
// Throws InvalidArgument if a glob matches no tensor, and what Optimizer throws.
ReplayResult replay(const Recording& recording, const ReplayOptions& options);

}  // namespace pride::app
