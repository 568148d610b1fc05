// The runs of an experiment: found in its folder, or run several at a time; and their records,
// which are kept up to date.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "experiments/plan.h"
#include "report/run_data.h"

namespace pride::app {

struct Entry {
  enum class State { kMissing, kDone, kFailed };

  Run run;
  State state = State::kMissing;
  RunData result = {};  // kDone, kFailed
  bool taken = false;   // it is running, or was
};

// The result of [tune] for one cell.
struct Choice {
  const Cell* cell = nullptr;
  std::vector<Point> points = {};       // combinations of its axes
  Point chosen = {};                    // empty: none gave a result
  std::vector<std::size_t> tried = {};  // points, in this order
  std::vector<const Entry*> runs = {};  // that tried them
  std::vector<Trial> trials = {};       // their results
  bool complete = false;                // all are done, and no other will be tried
};

struct Runs {
  // Tuning runs first, then the others seed by seed, without those that wait for [tune]. Entries
  // stay in place when more are added.
  std::deque<Entry> entries = {};
  std::vector<Choice> choices = {};  // one a cell; empty without [tune]
  bool complete = false;             // none is missing, and none was skipped by a signal
};

struct RunnerOptions {
  int jobs = 0;  // runs at a time; 0: as many as the cores hold workers
  bool retry = false, quiet = false;
};

// Reads the runs in the folder.
Runs known_runs(const ExperimentPlan& plan, const RunnerOptions& options);

// Runs what is missing, until stop_asked() is true. A failed run is recorded, and the others
// continue. Throws DataError if the folder cannot be written.
Runs make_runs(const ExperimentPlan& plan, const RunnerOptions& options,
               bool (*stop_asked)() noexcept);

// The result of the complete run in the folder, if it is the wanted one. `unusable`: why existing
// files cannot be used, naming one; empty: no fault.
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

// "dlion-vote, workers 16, seed 42", for progress and lists.
std::string name_of(const Run& run);

// A line of sweep.jsonl: all that is needed to repeat the run, and what it came to.
nlohmann::ordered_json record_of(const ExperimentPlan& plan, const Entry& entry);

// sweep.json: the file, what is done, what [tune] chose, and the results by row.
nlohmann::ordered_json overview_of(const ExperimentPlan& plan, const Runs& runs);

// One line a run: done, failed (and why) or missing.
std::string list_of_runs(const ExperimentPlan& plan, const Runs& runs);

// Markdown: one line a cell, then what failed, the points that [tune] tried, and those chosen at
// the end of an axis. Means and sample standard deviations over the seeds that did not fail.
std::string experiment_table(const Runs& runs);

// A sentence for each run that began with another loss than the first run of the same seed, task
// and batches: initial values and first batch depend on these only. Empty if all is well.
std::vector<std::string> unequal_starts(const std::deque<Entry>& entries);

}  // namespace pride::app
