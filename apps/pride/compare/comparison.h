// Comparison: makes the runs of a plan, one after the other, and keeps compare.json up to date.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "compare/plan.h"
#include "compare/report.h"

namespace pride::app {

class Comparison {
 public:
  Comparison(const ComparePlan& plan, bool (*stop_asked)() noexcept);

  // Makes all runs that are not complete yet. A run that fails is noted, and the others go on.
  // Returns false if it was asked to stop before the end. Throws DataError if --out cannot be
  // written.
  bool run();

  const std::vector<Entry>& entries() const noexcept { return entries_; }

 private:
  struct Stopped {};  // thrown by result_of, to leave a search in the middle

  void tune(Entry& entry);
  void train(Entry& entry, std::uint64_t seed);
  RunResult result_of(const Run& run);
  std::string name_of(const Run& run, int number) const;
  void announce(const Run& run) const;
  void tell(const RunResult& result, double seconds);
  std::string time_left() const;
  void write(bool complete) const;

  const ComparePlan& plan_;
  bool (*stop_asked_)() noexcept;
  std::vector<Entry> entries_;

  struct Kind {
    int planned = 0, done = 0;
    int timed = 0;  // of them made now, not found in the folder
    double seconds = 0;
  };
  Kind tuning_, training_;
};

}  // namespace pride::app
