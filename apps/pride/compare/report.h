// What a comparison found, as a table for people and as JSON.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "compare/plan.h"
#include "compare/rate_search.h"
#include "compare/result.h"

namespace pride::app {

// All that is known of one contender, so far.
struct Entry {
  Contender who;
  std::vector<Trial> trials = {};      // with --tune, in the order in which they were made
  std::vector<RunResult> tuning = {};  // their runs
  std::vector<RunResult> runs = {};    // one a seed
  bool rate_in_label = false;
};

// Markdown: one row an entry, then what failed. Means and sample standard deviations over the seeds
// that did not fail. `metric`: what stands next to the loss, e.g. "accuracy".
std::string results_table(const std::vector<Entry>& entries, const std::string& metric);

// The same, with the metric of the plan's task, and below it the rates that were tried.
std::string report_table(const ComparePlan& plan, const std::vector<Entry>& entries);

// `complete`: no run is missing.
nlohmann::ordered_json report_json(const ComparePlan& plan, const std::vector<Entry>& entries,
                                   bool complete);

// A sentence for each run that saw other data than the first of all, or began with another loss
// than the first of its seed (initial values and first batch depend on the seed only). Empty if all
// is well.
std::vector<std::string> unequal_starts(const std::vector<Entry>& entries);

}  // namespace pride::app
