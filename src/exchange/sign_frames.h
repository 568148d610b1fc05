// What the vote and the count share: frames of signs, and who sent them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "codecs/payload.h"
#include "exchange/frames.h"
#include "pride/cost.h"

namespace pride::exchange {

// Sizes wire.up for frames of signs.
void prepare_signs(const Bucket& bucket, Wire& wire);

// The rows of a run: the signs of its ranks, run.n_words words each. REQUIRES: run.ranks are
// indices of `frames`.
std::vector<const std::uint64_t*> rows_of(const Run& run, const Frames& frames,
                                          const SignFrame& at);

// Bit k = 1 where piece k is absent on all ranks.
void combine_absent(const Wire& wire, const StepContext& ctx, const SignFrame& at,
                    std::span<std::uint64_t> nobody);

// Bytes that `rank` sends: frames of signs to the other owners, its result to all other ranks.
Cost sign_cost(std::span<const Bucket> buckets, int rank,
               const std::function<std::size_t(const Shard&)>& down_bytes);

}  // namespace pride::exchange
