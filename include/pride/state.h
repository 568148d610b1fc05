// Optimizer state by parameter name: the content of checkpoints, free of buckets, ranks and
// padding.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pride/tensors.h"

namespace pride {

// The ranks of a buffer's values: kLocal: each rank has its own; kShared: all ranks have the same;
// kServer: each server has those of its shards.
enum class StateKind { kLocal, kShared, kServer };

// A buffer in an optimizer's memory: values of a section's tensors in their order, each of which
// begins at a multiple of 64. A kServer buffer is in host memory, with zeros in other ranks'
// shards.
struct StateBuffer {
  std::string name;  // "m"
  StateKind kind = StateKind::kLocal;
  std::span<float> values = {};             // if `dtype` is bfloat16, each float is two values
  std::shared_ptr<const void> memory = {};  // keeps the values readable
  DType dtype = DType::kFloat32;            // or kBFloat16
  int section = 0;                          // its number in Replica::sections()
};

// One rank's state. Tensors are keyed "<buffer>/<parameter>", e.g. "m/blocks.0.attn.weight", and
// have the parameter's shape. Scalars are the step counter and values that must match on load.
struct StateDict {
  struct Tensor {
    std::vector<std::int64_t> shape;
    std::vector<float> values;
  };
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> scalars;  // "step", "method", "options", "seed", "world", ...
};

}  // namespace pride
