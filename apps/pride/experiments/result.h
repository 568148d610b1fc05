// RunResult: what one run came to, read from the files that it wrote.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "experiments/plan.h"

namespace pride::app {

struct RunResult {
  Run run;
  std::string error = {};                    // why there is no result; empty: there is one
  std::map<std::string, double> final = {};  // metrics of the last evaluation
  double bytes = 0, late_bytes = 0;  // of the rank that sends most: mean over all steps, and
                                     // over the last tenth of them
  double step_ms = 0;
  double first_loss = 0;  // of step 1: initial values and first batch, no method yet
  double parameters = 0;
  int world = 0;
  nlohmann::json summary = {};  // null if there is none

  bool ok() const noexcept { return error.empty(); }
};

// The result of the complete run that the folder holds, if it is the one that is wanted and need
// not be made again. `unusable`: why files that are there cannot be used, naming one; empty if none
// is at fault.
std::optional<RunResult> made_before(const Run& run, std::string& unusable);

// Reads the run's folder. A run one of whose final metrics is not finite has failed. Throws
// DataError if the files cannot be read, or are not what `pride train` writes.
RunResult read_result(const Run& run);

// A run that ended with `code`: why, as its log says.
RunResult failed_result(const Run& run, int code);

// An end from outside, which says nothing about the next try.
inline constexpr const char* kStoppedBySignal = "stopped by a signal";
bool was_killed(const RunResult& result);

nlohmann::ordered_json to_json(const RunResult& result);

// Makes one run, a `pride train` in a process of its own, and reads its folder, whose contents are
// replaced. Nothing if the run was stopped before its end: because stop_asked() became true, or by
// a signal of its own. A run that fails is a result with an error. May be called by several threads
// at once, for different folders. Throws DataError if the folder cannot be made.
std::optional<RunResult> make_run(const Run& run, bool (*stop_asked)() noexcept);

}  // namespace pride::app
