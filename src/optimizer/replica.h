// Replica: all that workers of a coordinator's run have alike before a round, as one row of floats:
// the parameters, then each shared buffer of the method's state, such as an outer momentum.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "methods/method.h"
#include "pride/flat_buffer.h"
#include "pride/layout.h"

namespace pride {

std::size_t replica_floats(const Method& method, const Layout& layout);

// param_hash() of parameters wherever they lie.
std::uint64_t hash_of(const Layout& layout, ConstView x);

// Of the parameters alone it is param_hash(). Throws InvalidArgument unless these are rows of the
// layout's flat size.
std::uint64_t replica_hash(const Layout& layout, std::span<const float> row);

// The same of what a worker has: `x` are its parameters, local or common.
std::uint64_t replica_hash(const Layout& layout, Method& method, View x);

FlatBuffer replica_of(const Layout& layout, Method& method, View x);

// x and the method's state are those of the row from now on; drifts are dropped. REQUIRES:
// replica_floats() floats.
void take_replica(const Layout& layout, std::span<const float> row, Method& method, View x);

// From one flat buffer to the tensors, and back; padding is left as it is.
void scatter(const Layout& layout, std::span<const float> flat, View x);
void gather(const Layout& layout, ConstView x, std::span<float> flat);

}  // namespace pride
