// Newton-Schulz iterates by torch's products of matrices.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

namespace pride {

// Replaces float32 matrices of one shape, in place, as rules::Orthogonaliser does. Products are
// torch's, batched, in float32 (or TF32, where torch's settings allow it) or in bfloat16.
// REQUIRES: matrices are not empty.
void newton_schulz(std::span<const at::Tensor> matrices, int iterations, at::ScalarType products);

}  // namespace pride
