// Agreement between ranks before a collective call: the same call, settings and tensors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "pride/communicator.h"
#include "pride/layout.h"

namespace pride {

// The rows of all ranks, in rank order. Collective. REQUIRES: rows of equal length.
std::vector<std::uint64_t> gather_rows(Communicator& comm, const std::vector<std::uint64_t>& mine);

// "1, 3": the ranks whose entry k differs from rank 0's in rows of that width; empty if none.
std::string ranks_that_differ(const std::vector<std::uint64_t>& rows, std::size_t width,
                              std::size_t k);

// The collective calls of an optimizer that begin with an agreement.
enum class Call : std::uint64_t { kConstruct, kAdd, kBroadcast, kLoad, kFirstStep };

// Returns the value of every rank. Collective. Throws InvalidArgument on every rank, naming the
// calls, if the ranks make different ones.
std::vector<std::uint64_t> gather_calls(Communicator& comm, Call call, std::uint64_t value);

// On a rank that accepts the call: throws InvalidArgument if other ranks refuse it, naming them. On
// a rank that refuses it: returns. Collective, and throws as gather_calls().
void check_accepted(Communicator& comm, Call call, bool refused);

// Compares the layout and the digests of named settings over all ranks. Throws InvalidArgument
// on every rank, naming the first setting that differs and the ranks that differ from rank 0. If
// layouts differ, it describes this rank's version of the first tensor that differs. Returns `own`
// of every rank. Collective. REQUIRES: the same names in the same order on all ranks.
std::vector<std::int64_t> check_agreement(
    Communicator& comm, const Layout& layout,
    const std::vector<std::pair<std::string, std::uint64_t>>& settings, std::int64_t own = 0);

}  // namespace pride
