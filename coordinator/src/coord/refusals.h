// Prefixes of refusals to which a client reacts by itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace pride::coord {

// The coordinator has no such session: register, then send the open round's ballot again.
inline constexpr std::string_view kRegisterAgain = "register again";

// The coordinator is about to end. It may be restarted, so repeat the call.
inline constexpr std::string_view kStops = "the coordinator stops";
inline constexpr std::string_view kFailed = "the coordinator failed";

inline constexpr std::string_view kMakeLonger =
    "; a line `steps N` in the coordinator's control.txt makes a run longer";
inline constexpr std::string_view kEjected = "the operator has ejected this worker from the run";

// Parts of temporary refusals.
inline constexpr std::string_view kTooOften = " registrations a minute ";
inline constexpr std::string_view kNotYetValid = "is not valid before ", kExpired = "has expired";

// Reasons of ballots that were not counted.
inline constexpr std::string_view kLate = "late", kLongAgo = "the round closed long ago";

// The client adds where this worker's secret is.
inline constexpr std::string_view kOtherSecret = "belongs to a worker with another secret";

}  // namespace pride::coord
