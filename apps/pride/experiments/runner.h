// Runner: makes the runs of a plan, several at a time, and keeps its records up to date.
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

#include "experiments/result.h"

namespace pride::app {

struct Entry {
  enum class State { kMissing, kDone, kFailed };

  Run run;
  State state = State::kMissing;
  RunData result = {};  // kDone, kFailed
  double seconds = 0;   // that it took, if it was made now
};

// What [tune] found for one cell.
struct Choice {
  const Cell* cell = nullptr;
  std::vector<Point> points = {};       // combinations of its axes
  Point chosen = {};                    // empty: none gave a result
  std::vector<std::size_t> tried = {};  // points, in this order
  std::vector<std::string> runs = {};   // ids of their runs
  std::vector<Trial> trials = {};       // what they came to
  bool complete = false;                // all of them have been made, and no other is to be tried
};

struct RunnerOptions {
  int jobs = 0;  // runs at a time; 0: as many as the cores hold workers
  bool retry = false, quiet = false;
};

class Runner {
 public:
  // Reads what the folder holds already.
  Runner(const ExperimentPlan& plan, const RunnerOptions& options, bool (*stop_asked)() noexcept);

  // Makes what is missing. A run that fails is recorded, and the others go on. Returns false if it
  // was asked to stop before the end. Throws DataError if the folder cannot be written.
  bool run();

  // Tuning runs first, then the others seed by seed; those that [tune] has yet to decide on are not
  // among them.
  const std::deque<Entry>& entries() const noexcept { return entries_; }
  const std::vector<Choice>& choices() const noexcept { return choices_; }

 private:
  bool add_tuning_runs();  // false if there are none to add, or none as yet
  std::vector<std::size_t> next_points(const Choice& choice) const;
  bool any_missing(const Choice& choice) const;
  std::vector<Trial> trials_of(const Choice& choice) const;
  std::string why_no_choice(const Choice& choice) const;
  void add_final_runs();
  Entry& add(Run run);
  void look_for_earlier(Entry& entry) const;
  void choose(Choice& choice) const;

  bool make_missing();
  void work();
  Entry* next_that_fits();
  bool any_missing() const;
  void make(Entry& entry);
  void finish(Entry& entry, std::optional<RunData> result, double seconds);
  void tell(const Entry& entry) const;
  void tell_refusal(const Entry& entry) const;
  std::string time_left() const;
  void write(bool complete) const;

  const ExperimentPlan& plan_;
  RunnerOptions options_;
  bool (*stop_asked_)() noexcept;
  std::deque<Entry> entries_;  // stays in place as it grows
  std::map<std::string, Entry*> by_id_;
  std::vector<Choice> choices_;  // one a cell; empty without [tune]

  // all below, and the entries while runs are made, under mutex_
  std::mutex mutex_;
  std::condition_variable ended_;
  std::map<const Entry*, bool> taken_;
  int running_ = 0, busy_workers_ = 0;
  std::exception_ptr broken_;
  std::chrono::steady_clock::time_point began_;
  double made_samples_ = 0;
};

}  // namespace pride::app
