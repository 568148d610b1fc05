// The part of the consumer that uses pride::torch.
// SPDX-License-Identifier: Apache-2.0
#include <ATen/Functions.h>

#include <algorithm>

#include "pride/torch/flat_module.h"

// True if a torch tensor and the flat buffer are the same memory.
bool torch_part_works() {
  at::Tensor weight = at::ones({4, 16}).requires_grad_(true);
  pride::FlatModule flat({{.name = "weight", .tensor = weight}});
  const bool copied = std::ranges::all_of(flat.params(), [](float x) { return x == 1; });
  std::ranges::fill(flat.params(), 3.0f);
  return copied && weight.min().item<float>() == 3;
}
