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

// Placement of a buffer: each rank has its own, all ranks have the same, or each server has its
// shard's part.
enum class StateKind { kLocal, kShared, kServer };

// A buffer of (flat_size) values in an optimizer's memory. Of kServer: it lies in the host's
// memory, and other ranks' shards are zero.
struct StateBuffer {
  std::string name;  // "m"
  StateKind kind = StateKind::kLocal;
  std::span<float> values = {};             // in bfloat16: pairs of them
  std::shared_ptr<const void> memory = {};  // keeps the values where they are
  DType dtype = DType::kFloat32;            // or kBFloat16
};

// One rank's state. Tensors are keyed "<buffer>/<parameter>", e.g. "m/blocks.0.attn.weight", and
// have the parameter's shape; scalars hold the step counter and values that must match on load.
struct StateDict {
  struct Tensor {
    std::vector<std::int64_t> shape;
    std::vector<float> values;
  };
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> scalars;  // "step", "method", "options", "seed", "world", ...
};

}  // namespace pride
