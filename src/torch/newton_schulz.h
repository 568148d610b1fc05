// The Newton-Schulz iteration, by torch's matrix products.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

namespace pride {

// Orthogonalises float32 matrices of one shape in place, as rules::Orthogonaliser does. Products
// are torch's, batched, in bfloat16 or float32 (TF32 if torch's settings allow it).
// REQUIRES: matrices are not empty.
void newton_schulz(std::span<const at::Tensor> matrices, int iterations, at::ScalarType products);

}  // namespace pride
