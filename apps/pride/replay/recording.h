// Recorded gradients: the input of `pride replay`, checked and laid out.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "pride/layout.h"
#include "train/io/safetensors.h"
#include "train_names.h"

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
  // layout; padding is left alone.
  void copy_params(const Layout& layout, std::span<float> flat) const;
  void copy_grads(const Layout& layout, std::int64_t step, int worker, std::span<float> flat) const;
};

// Pairs `param.<name>` (shape) with `grad.<name>` (steps, workers, shape). `file` is for errors.
// Throws DataError, naming the tensor: nothing recorded, another name or dtype than these, one of
// the pair missing, steps or workers that differ, a gradient of another shape, no worker or more
// than 1,024.
Recording make_recording(const std::filesystem::path& file,
                         std::map<std::string, SafeTensor> tensors);

}  // namespace pride::app
