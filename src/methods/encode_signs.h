// The worker's half of the methods that send signs: blend, sign, momentum.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/kernels.h"
#include "methods/method.h"
#include "methods/orthogonal_blend.h"

namespace pride::methods {

// The betas of a worker's blend of momentum and gradient.
using BlendOf = kernels::Blend (*)(const StepScalars&);
kernels::Blend lion_blend(const StepScalars& s);

// Option `momentum_dtype`, and its declaration.
DType momentum_option(const OptionValues& options);
MethodOption momentum_option_info();

// A voted step of the tensor, in learning rates. `muon`: null: none.
inline float step_scale(const OrthogonalBlend* muon, std::size_t tensor) {
  return muon == nullptr ? 1 : muon->step_scale(tensor);
}

// On a device, for ties: the bits of cells in the shard that this rank serves, as Wire::cells. It
// is the only one, or that of its rank.
void copy_tie_bits(Space& space, std::span<const Shard> shards, const StepContext& ctx,
                   const OrthogonalBlend* muon, Wire& wire);

// Worker: u = beta1 m + (1-beta1) g;  delta = sign(u);  m = beta2 m + (1-beta2) g. The wire's fault
// word gets the first tensor with a NaN or Inf. Tensors that `muon` has use its directions.
// REQUIRES: frames of signs with their unused bits.
void encode_signs(Space& space, std::span<const Shard> shards, GradientView grad,
                  const StepContext& ctx, BlendOf blend, const Stored& m, Wire& wire,
                  OrthogonalBlend* muon = nullptr);

}  // namespace pride::methods
