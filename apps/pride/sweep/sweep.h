// Sweep: makes the runs of a plan, several at a time, and keeps its records up to date.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "compare/result.h"
#include "sweep/plan.h"

namespace pride::app {

struct SweepEntry {
  enum class State { kMissing, kDone, kFailed };

  SweepRun run;
  State state = State::kMissing;
  RunResult result = {};  // kDone, kFailed
  double seconds = 0;     // that it took, if it was made now
};

// What [tune] found for one cell.
struct Choice {
  const Cell* cell = nullptr;
  Point chosen = {};                     // empty: none of them gave a result
  std::vector<std::size_t> points = {};  // of the cell that are tried so far, in this order
  std::vector<std::string> tried = {};   // ids of their runs
  bool complete = false;                 // all of them have been made, and no other is to be tried
};

class Sweep {
 public:
  // Reads what the folder holds already.
  Sweep(const SweepPlan& plan, bool (*stop_asked)() noexcept);

  // Makes what is missing. A run that fails is recorded, and the others go on. Returns false if it
  // was asked to stop before the end. Throws DataError if the folder cannot be written.
  bool run();

  // Tuning runs first, then the others seed by seed; those that [tune] has yet to decide on are not
  // among them.
  const std::deque<SweepEntry>& entries() const noexcept { return entries_; }
  const std::vector<Choice>& choices() const noexcept { return choices_; }

 private:
  bool add_tuning_runs();  // false if there are none to add, or none as yet
  std::vector<std::size_t> next_points(const Choice& choice) const;
  bool is_missing(const std::string& id) const;
  std::optional<std::size_t> best_tried(const Choice& choice) const;
  void add_final_runs();
  SweepEntry& add(SweepRun run);
  void look_for_earlier(SweepEntry& entry) const;
  void choose(Choice& choice) const;

  bool make_missing();
  void work();
  SweepEntry* next_that_fits();
  bool any_missing() const;
  void make(SweepEntry& entry);
  void finish(SweepEntry& entry, std::optional<RunResult> result, double seconds);
  void tell(const SweepEntry& entry) const;
  void tell_refusal(const SweepEntry& entry) const;
  std::string time_left() const;
  void write(bool complete) const;

  const SweepPlan& plan_;
  bool (*stop_asked_)() noexcept;
  std::deque<SweepEntry> entries_;  // stays in place as it grows
  std::map<std::string, SweepEntry*> by_id_;
  std::vector<Choice> choices_;  // one a cell; empty without [tune]

  // all below, and the entries while runs are made, under mutex_
  std::mutex mutex_;
  std::condition_variable ended_;
  std::map<const SweepEntry*, bool> taken_;
  int running_ = 0, busy_workers_ = 0;
  std::exception_ptr broken_;
  std::chrono::steady_clock::time_point began_;
  double made_samples_ = 0;
};

}  // namespace pride::app
