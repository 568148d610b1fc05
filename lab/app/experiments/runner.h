// The runs of an experiment: read from its folder, or run several at a time; and their records,
// rewritten after each run.
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
  bool taken = false;   // a thread has started it
};

// The result of [tune] for one cell.
struct Choice {
  const Cell* cell = nullptr;
  std::vector<Point> points = {};       // combinations of its axes
  Point chosen = {};                    // empty: no point has a result
  std::vector<std::size_t> tried = {};  // indices of tried points, in order
  std::vector<const Entry*> runs = {};  // the run of each tried point
  std::vector<Trial> trials = {};       // their results
  bool complete = false;                // all runs are done, and no other point will be tried
};

struct Runs {
  // Tuning runs first, then the others seed by seed, without those that wait for [tune]. Entries
  // stay in place when more are added.
  std::deque<Entry> entries = {};
  std::vector<Choice> choices = {};  // one per cell; empty without [tune]
  bool complete = false;             // no run is missing
};

struct RunnerOptions {
  int jobs = 0;  // parallel runs; 0: as many as have cores for their workers, at least one
  bool retry = false, quiet = false;
};

// Reads the runs in the folder; runs nothing.
Runs known_runs(const ExperimentPlan& plan, const RunnerOptions& options);

// Runs what is missing, until stop_asked() is true. A failed run is recorded, and the others
// continue. Throws DataError if the folder cannot be written.
Runs make_runs(const ExperimentPlan& plan, const RunnerOptions& options,
               bool (*stop_asked)() noexcept);

// The result of the complete run in the folder, if it is the wanted run. Sets `unusable` to the
// error, if existing files cannot be read.
std::optional<RunData> made_before(const Run& run, std::string& unusable);

// Makes one run, a `pride train` in its own process, and reads its folder, whose contents it
// replaces. Returns nothing if the run was stopped before its end, by stop_asked() or a signal. If
// the run fails, or a final metric is not finite, the result has an error. Several threads may call
// it at the same time, for different folders. Throws DataError if the folder cannot be made, or if
// its files are not what `pride train` writes.
std::optional<RunData> make_run(const Run& run, bool (*stop_asked)() noexcept);

// The error of a run that a signal ended; the run may succeed the next time.
inline constexpr const char* kStoppedBySignal = "stopped by a signal";
bool was_killed(const RunData& result);

// "dlion-vote, workers 16, seed 42", for progress and lists.
std::string name_of(const Run& run);

// A line of sweep.jsonl: the command that repeats the run, and its result.
nlohmann::ordered_json record_of(const ExperimentPlan& plan, const Entry& entry);

// sweep.json: the experiment file, numbers of runs, the choices of [tune], and the results by row.
nlohmann::ordered_json overview_of(const ExperimentPlan& plan, const Runs& runs);

// One line per run: done, failed (with the error) or missing.
std::string list_of_runs(const ExperimentPlan& plan, const Runs& runs);

// Markdown: one line per cell, then the failures, the points that [tune] tried, and the choices at
// the end of an axis. Means and sample standard deviations over the seeds that did not fail.
std::string experiment_table(const Runs& runs);

// A sentence for each run whose first loss differs from the first run's of the same seed, task and
// batches, on which alone initial values and first batch depend. Empty: no such run.
std::vector<std::string> unequal_starts(const std::deque<Entry>& entries);

}  // namespace pride::app
