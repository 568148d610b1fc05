// The part of the consumer that uses pride::torch.
// SPDX-License-Identifier: Apache-2.0
#include <ATen/Functions.h>

#include "pride/torch/module_tensors.h"

// True if the tensor is used where it lies.
bool torch_part_works() {
  at::Tensor weight = at::ones({4, 16}).requires_grad_(true);
  pride::ModuleTensors tensors({{.name = "weight", .tensor = weight}});
  return tensors.parameters()[0].data == weight.data_ptr();
}
