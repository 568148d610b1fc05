// replay: runs recorded gradients, checked and laid out, through a method with its real exchange.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pride/layout.h"
#include "pride/optimizer.h"
#include "program/io/safetensors.h"

namespace pride::app {

// One parameter tensor and its gradient on every worker at every step.
struct RecordedTensor {
  std::vector<std::int64_t> shape;
  std::vector<float> param;  // (n), before the first step
  std::vector<float> grads;  // (steps, workers, n)
};

struct Recording {
  std::int64_t steps = 0;
  int workers = 0;
  std::map<std::string, RecordedTensor> tensors;  // by name, which is their canonical order

  // The tensors' layout. `group` gives the parameter group of a name.
  template <typename Group>
  Layout layout(Group group) const {
    std::vector<TensorSpec> specs;
    for (const auto& [name, t] : tensors) {
      specs.push_back({.name = name, .shape = t.shape, .group = group(name)});
    }
    return Layout(std::move(specs));
  }

  // Copies the first parameters, or one worker's gradients of one step, into a flat buffer of that
  // layout; padding does not change.
  void copy_params(const Layout& layout, std::span<float> flat) const;
  void copy_grads(const Layout& layout, std::int64_t step, int worker, std::span<float> flat) const;
};

// Pairs `param.<name>` (shape) with `grad.<name>` (steps, workers, shape). `file` is for errors.
// Throws DataError, naming the tensor: no tensors, another name or dtype, one of a pair missing,
// differing steps or workers, a gradient of another shape, no worker or more than 1,024.
Recording make_recording(const std::filesystem::path& file,
                         std::map<std::string, SafeTensor> tensors);

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
// Throws InvalidArgument if a glob matches no tensor, and as Optimizer does.
ReplayResult replay(const Recording& recording, const ReplayOptions& options);

}  // namespace pride::app
