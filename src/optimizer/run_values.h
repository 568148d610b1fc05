// What all workers of a coordinator's run share before a round, as one row of floats: the
// parameters, then each shared buffer of the method's state, such as an outer momentum.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "methods/method.h"
#include "pride/flat_buffer.h"
#include "pride/layout.h"

namespace pride {

std::size_t run_floats(const Method& method, const Layout& layout);

// param_hash() of parameters wherever they lie.
std::uint64_t hash_of(const Layout& layout, ConstView x);

// For parameters alone it is param_hash(). Throws InvalidArgument unless the row's length is a
// multiple of the layout's flat size.
std::uint64_t run_hash(const Layout& layout, std::span<const float> row);

// The parameters that must be equal on all ranks: x, or the common ones. `room` keeps addresses.
ConstView common_of(const Method& method, View x, std::vector<ParameterPlace>& room);

// The same from a worker's state: `x` are its parameters, local or common.
std::uint64_t run_hash(const Layout& layout, const Method& method, View x);

FlatBuffer run_values(const Layout& layout, const Method& method, View x);

// Copies the row into x and the method's state, and drops drifts. REQUIRES: run_floats()
// floats.
void take_run_values(const Layout& layout, std::span<const float> row, Method& method, View x);

// Copy from one flat buffer to the tensors, and back. Padding does not change.
void scatter(const Layout& layout, std::span<const float> flat, View x);
void gather(const Layout& layout, ConstView x, std::span<float> flat);

}  // namespace pride
