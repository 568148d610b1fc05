// What a sweep writes down: a line of JSON a run, an overview, and a table for people.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sweep/sweep.h"

namespace pride::app {

// "dlion-vote, workers 16, seed 42", for progress and lists.
std::string name_of(const SweepRun& run);

// A line of sweep.jsonl: all that is needed to repeat the run, and what it came to.
nlohmann::ordered_json record_of(const SweepPlan& plan, const SweepEntry& entry);

// sweep.json: the file, what is done, and what [tune] chose.
nlohmann::ordered_json overview_of(const SweepPlan& plan, const std::deque<SweepEntry>& entries,
                                   const std::vector<Choice>& choices, bool complete);

// The flags whose chosen value is the largest or the smallest of their axis (but 0): a better one
// may lie beyond it. Axes of one value, and of words, have no end.
std::vector<std::string> at_end_of_grid(const Choice& choice);

// Markdown: one row a cell, means over its seeds, then what failed, and what was chosen at the end
// of its axis.
std::string sweep_table(const std::deque<SweepEntry>& entries, const std::vector<Choice>& choices);

// One line a run: done, failed (and why) or missing.
std::string sweep_list(const SweepPlan& plan, const std::deque<SweepEntry>& entries,
                       const std::vector<Choice>& choices);

}  // namespace pride::app
