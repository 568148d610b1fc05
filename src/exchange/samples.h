// A few coordinates of every rank, told to all: what each would vote for, and its momentum. For
// diagnostics and for choices that all ranks must make alike.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "pride/communicator.h"
#include "pride/cost.h"
#include "pride/step.h"
#include "pride/wire.h"

namespace pride::exchange {

// Level of a coordinate whose tensor has no gradient on the rank.
inline constexpr std::int8_t kNoLevel = -128;

// Samples of one rank: the blend u, the momentum m after its update, the level q that was sent.
struct Samples {
  std::span<float> u, m;
  std::span<std::int8_t> q;
};

struct ReceivedSamples {
  std::span<const float> u, m;
  std::span<const std::int8_t> q;
};

// Space for the samples of this rank, n of them, to be filled before share_samples.
Samples prepare_samples(std::size_t n, const StepContext& ctx, Wire& wire);

Samples own_samples(std::size_t n, const StepContext& ctx, Wire& wire);  // that space again

// Each rank sends its n samples to every other; nothing if n is 0. Throws CommError, naming the
// sender, on samples that are not finite.
void share_samples(Communicator& comm, int bucket, const StepContext& ctx, std::size_t n,
                   Wire& wire);

// The samples of rank r, after share_samples.
ReceivedSamples samples_of(const Wire& wire, int r, const StepContext& ctx, std::size_t n);

// Exact bytes that a rank sends; nothing if n is 0.
Cost samples_cost(std::size_t n, int world);

}  // namespace pride::exchange
