// The description of a run as a message, and the differences of two.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "pride/coordinator.h"

namespace pride::coord {

inline constexpr unsigned kProtocol = 4;  // with records of version 2
inline constexpr std::size_t kMostRunBytes = std::size_t{4} << 20;
inline constexpr std::size_t kSecretBytes = 16;

// Equal descriptions have equal bytes.
std::string encode_run(const RunDescription& run, const std::string& id = {});
// Throws InvalidArgument unless these are the bytes of a description: names and shapes of a layout
// of at most 2^40 coordinates, and existing groups.
RunDescription decode_run(std::string_view bytes);

// The number in the settings' line "steps=300"; 0: there is no such line.
std::int64_t steps_of(const RunDescription& run);

// "method: the run has dlion-vote, this worker lion-cub; ...": all differences. `steps`: the length
// of a lengthened run; a worker may have the old length or this one.
std::optional<std::string> difference(const RunDescription& run, const RunDescription& worker,
                                      std::int64_t steps = 0);

}  // namespace pride::coord
