// Records of an experiment: a line of JSON a run, and an overview.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/runner.h"

namespace pride::app {

// "dlion-vote, workers 16, seed 42", for progress and lists.
std::string name_of(const Run& run);

// A line of sweep.jsonl: all that is needed to repeat the run, and what it came to.
nlohmann::ordered_json record_of(const ExperimentPlan& plan, const Entry& entry);

// sweep.json: the file, what is done, what [tune] chose, and the results by row.
nlohmann::ordered_json overview_of(const ExperimentPlan& plan, const std::deque<Entry>& entries,
                                   const std::vector<Choice>& choices, bool complete);

// One line a run: done, failed (and why) or missing.
std::string list_of_runs(const ExperimentPlan& plan, const std::deque<Entry>& entries,
                         const std::vector<Choice>& choices);

}  // namespace pride::app
