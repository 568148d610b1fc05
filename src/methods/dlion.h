// Distributed Lion's three halves as functions of one shard, for the methods that vote with signs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codecs/counts.h"
#include "codecs/signs.h"
#include "kernels/kernels.h"
#include "methods/method.h"
#include "methods/orthogonal_blend.h"

namespace pride::methods {

// Result of a tied vote: a hash bit shared by all ranks, or zero (a ternary result).
enum class Tie { kHash, kZero };

// Option `tie`, and its declaration.
Tie tie_option(const std::string& method, const MethodContext& ctx);
MethodOption tie_option_info(std::string tied);

// The betas of a worker's blend of momentum and gradient.
using BlendOf = kernels::Blend (*)(const StepScalars&);
kernels::Blend lion_blend(const StepScalars& s);

// Worker: delta = sign(beta1 m + (1-beta1) g);  m = beta2 m + (1-beta2) g. Returns the first tensor
// with a NaN or Inf. `matrices`: these take their signs from there. REQUIRES: a frame of signs with
// its unused bits.
std::optional<NonFinite> encode_signs(const Shard& shard, ConstView grad, const StepContext& ctx,
                                      BlendOf blend, FlatBuffer& m, std::span<std::byte> frame,
                                      const OrthogonalBlend* matrices = nullptr);

// Server: the majority of frames of signs.
void serve_vote(const Shard& shard, std::span<const Frame> signs, const Round& round, Tie tie,
                std::span<std::byte> result);

// Worker: x = (1 - lr wd) x - lr vote; only decay where no rank uses the tensor. `matrices`: lr
// times their scales.
void apply_vote(const Shard& shard, const VoteView<const std::byte>& vote, const StepContext& ctx,
                View x, const OrthogonalBlend* matrices = nullptr);

}  // namespace pride::methods
