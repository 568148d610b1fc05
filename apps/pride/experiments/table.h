// The results of an experiment, as a table for people and as JSON.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/runner.h"

namespace pride::app {

// The runs of one cell that were made, one a seed. They point into the entries.
struct Row {
  std::string label;  // with what varies: "lion, workers 4"
  bool rate_in_label = false;
  std::vector<const RunResult*> runs = {};
};
std::vector<Row> rows_of(const std::deque<Entry>& entries);

// Markdown: one line a row, then what failed. Means and sample standard deviations over the seeds
// that did not fail. `metric`: what stands next to the loss, e.g. "accuracy".
std::string results_table(const std::vector<Row>& rows, const std::string& metric);

// The same of all rows, with the metric of their task, then the points that [tune] tried, and those
// chosen at the end of an axis.
std::string experiment_table(const std::deque<Entry>& entries, const std::vector<Choice>& choices);

// A row's means and deviations; null if no run gave a result.
nlohmann::ordered_json results_json(const Row& row);

// The flags whose chosen value is the largest or the smallest of their axis (but 0): a better one
// may lie beyond it. Axes of one value, and of words, have no end.
std::vector<std::string> at_end_of_grid(const Choice& choice);

// ", workers 4, lr 1e-3"
std::string text_of(const Point& point);

// A sentence for each run that began with another loss than the first run of the same seed, task
// and batches: initial values and first batch depend on these only. Empty if all is well.
std::vector<std::string> unequal_starts(const std::deque<Entry>& entries);

}  // namespace pride::app
