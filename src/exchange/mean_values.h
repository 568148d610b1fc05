// The mean over the ranks of values that each of them has, such as its momentum: sharded as the
// vote is, in float32, bfloat16 or p-bit levels, and the same on all ranks afterwards.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "codecs/levels.h"
#include "pride/bucket.h"
#include "pride/communicator.h"
#include "pride/cost.h"
#include "pride/step.h"
#include "pride/wire.h"

namespace pride::exchange {

// What the values are part of, for errors: the bucket, and the tensor of value i.
struct ValueSource {
  int bucket = 0;
  std::function<std::uint32_t(std::size_t)> tensor_of;
};

// values = their mean over the ranks, added in rank order and rounded to the format; the values
// themselves are rounded before they are added. Sends 2 (N-1)/N of the values.
// wire.poison: a value or a mean that the format cannot hold, the same on all ranks; then `values`
// is as it was. REQUIRES: values.size() is a multiple of 64, the same on all ranks.
void mean_values(Communicator& comm, const ValueSource& source, const StepContext& ctx,
                 ValueFormat format, std::span<float> values, Wire& wire);

// Exact bytes that `rank` sends for n values; nothing if n is 0.
Cost mean_values_cost(std::size_t n, ValueFormat format, int world, int rank);

// Sent by all ranks together.
std::uint64_t mean_values_total(std::size_t n, ValueFormat format, int world);

}  // namespace pride::exchange
