// What a run of an experiment came to: found in its folder, or made.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "experiments/plan.h"
#include "report/run_data.h"

namespace pride::app {

// The result of the complete run that the folder holds, if it is the one that is wanted and need
// not be made again. `unusable`: why files that are there cannot be used, naming one; empty if none
// is at fault.
std::optional<RunData> made_before(const Run& run, std::string& unusable);

// Makes one run, a `pride train` in a process of its own, and reads its folder, whose contents are
// replaced. Nothing if the run was stopped before its end: because stop_asked() became true, or by
// a signal of its own. A run that fails, or one of whose final metrics is not finite, has an error.
// May be called by several threads at once, for different folders. Throws DataError if the folder
// cannot be made, or if its files are not what `pride train` writes.
std::optional<RunData> make_run(const Run& run, bool (*stop_asked)() noexcept);

// An end from outside, which says nothing about the next try.
inline constexpr const char* kStoppedBySignal = "stopped by a signal";
bool was_killed(const RunData& result);

}  // namespace pride::app
