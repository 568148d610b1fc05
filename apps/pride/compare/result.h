// RunResult: what one run of a comparison came to, read from the files that it wrote.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "compare/plan.h"

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
  double loss() const { return ok() ? final.at("loss") : std::numeric_limits<double>::infinity(); }
};

// True if the folder holds the complete run that is wanted, so that it need not be made again.
bool is_complete(const Run& run);

// Reads the run's folder. A run without a finite loss has failed. Throws DataError if the files
// cannot be read.
RunResult read_result(const Run& run);

// A run that ended with `code`: why, as its log says.
RunResult failed_result(const Run& run, int code);

// For compare.json.
nlohmann::ordered_json to_json(const RunResult& result);

}  // namespace pride::app
