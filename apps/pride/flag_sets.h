// Flags of `pride train` that do not make another run of it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>

namespace pride::app {

using FlagSet = std::set<std::string>;

// where something lies: its hash counts instead (that of the data knows the vocabulary's)
inline const FlagSet kPlaceFlags = {"data", "init", "vocab"};

// without influence on parameters, bytes and what is recorded
inline const FlagSet kIdleFlags = {"overlap", "exchange-threads", "timeout", "log-every",
                                   "loader-threads"};

// what is recorded of a run, and where it begins; its parameters are the same
inline const FlagSet kWatchingFlags = {"save-every", "resume", "resume-local", "eval-every"};

}  // namespace pride::app
