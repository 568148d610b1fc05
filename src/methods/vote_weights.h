// Vote weights of the ranks, from the optimizer's options to those of a step.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pride/nodes.h"
#include "routes/protocol.h"

namespace pride {

inline constexpr std::int64_t kMostVoteWeight = 65535;  // 16 bits of a frame's header

// Round::weights: the given weights, one for each rank, over their greatest common divisor; empty
// if they are equal, as votes of one each give the same results. Throws InvalidArgument, naming
// method and ranks, if a weight is not from 1 to kMostVoteWeight, if the method has no weights
// (Protocol::most_votes), and if their sum over all ranks or over a node is too large.
std::vector<int> vote_weights(std::string_view method, const Protocol& protocol, const Nodes& nodes,
                              std::span<const std::int64_t> given);

}  // namespace pride
