// Mean of scaled signs, answered in scaled signs: both ways of the wire hold one bit a coordinate
// and one float a block. What the answer leaves out, the owner of the shard keeps for the next.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "codecs/scaled_signs.h"
#include "kernels/kernels.h"
#include "pride/bucket.h"
#include "pride/communicator.h"
#include "pride/cost.h"
#include "pride/flat_buffer.h"
#include "pride/step.h"
#include "pride/wire.h"

namespace pride::exchange {

// The scale of a block: the mean of |p|, or the root of the mean of p^2.
enum class Norm { kMeanAbs, kRms };

// C(p) = scale * sign(p): fills the words and returns the scale, which is not finite if p is not.
float compress(std::span<const float> p, Norm norm, kernels::HashWords zeros,
               std::span<std::uint64_t> signs);

// Sizes the frames, clears them, and marks the pieces that are absent here.
void prepare_scaled_signs(const Bucket& bucket, const StepContext& ctx, Wire& wire);

// p_i of all ranks as scaled signs in wire.up -> Delta in wire.down:
//   pbar = (C(p_0) + C(p_1) + ...) / N + owner_error;  Delta = C(pbar)
// Pieces that are absent on all ranks are marked in the answer and have no Delta. A pbar that
// overflows is poison. Leaves this rank's pbar in wire.owner_accumulated and changes no state.
// REQUIRES: owner_error has the layout's flat size.
void scaled_sign_mean(Communicator& comm, const Bucket& bucket, const StepContext& ctx, Norm norm,
                      const FlatBuffer& owner_error, Wire& wire);

// owner_error = pbar - Delta for this rank's shard; where nobody has the tensor it stays.
void keep_owner_error(const Bucket& bucket, const StepContext& ctx, const Wire& wire,
                      FlatBuffer& owner_error);

// One block of a frame of scaled signs.
struct SignBlock {
  bool absent = false;  // the piece's bit: absent (up), nobody has it (down)
  float scale = 0;
  std::span<const std::uint64_t> signs;
};
// REQUIRES: block k of the shard that the frame is about.
SignBlock block_of(std::span<const std::byte> frame, const ScaledSignFrame& at,
                   const ScaleBlock& block, std::size_t k);

Cost scaled_sign_cost(std::span<const Bucket> buckets, int rank);

}  // namespace pride::exchange
