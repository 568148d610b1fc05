// Records of an experiment: a line of JSON a run, an overview, and a table for people.
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

// Markdown: one line a cell, then what failed, the points that [tune] tried, and those chosen at
// the end of an axis. Means and sample standard deviations over the seeds that did not fail.
std::string experiment_table(const std::deque<Entry>& entries, const std::vector<Choice>& choices);

// The flags whose chosen value is the largest or the smallest of their axis (but 0): a better one
// may lie beyond it. Axes of one value, and of words, have no end.
std::vector<std::string> at_end_of_grid(const Choice& choice);

// A sentence for each run that began with another loss than the first run of the same seed, task
// and batches: initial values and first batch depend on these only. Empty if all is well.
std::vector<std::string> unequal_starts(const std::deque<Entry>& entries);

}  // namespace pride::app
