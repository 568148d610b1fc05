// SweepPlan: the runs that an experiment is made of, each with its command line and its folder.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compare/plan.h"
#include "sweep/cells.h"
#include "sweep/options.h"

namespace pride::app {

struct SweepRun {
  Run run;              // its folder is OUT/runs/ID
  std::string id = {};  // made of label, settings, seed, and a hash of all that decides the result
  Point varied = {};    // what tells the cell from others of its label
  std::string refused = {};  // why `pride train` would not begin; empty if it would
  double samples = 0;        // that all its steps see
  int workers = 1;
};

class SweepPlan {
 public:
  // Throws InvalidArgument on what is wrong with the file, if a task has not what [tune] chooses
  // by, and if every run would be refused (with the words of the first); DataError if the data
  // cannot be loaded.
  explicit SweepPlan(SweepOptions options);

  const SweepOptions& options() const noexcept { return options_; }
  const Experiment& experiment() const noexcept { return experiment_; }
  const std::filesystem::path& out() const noexcept { return out_; }
  const std::vector<Cell>& cells() const noexcept { return cells_; }

  // With [tune]: the run that tries the point for the cell. Cells that differ in nothing but what
  // [tune] sets have the same.
  SweepRun tuning_run(const Cell& cell, const Point& point) const;
  // The run of the experiment itself; `chosen` by tuning, else empty.
  SweepRun final_run(const Cell& cell, const Point& chosen, std::uint64_t seed) const;

 private:
  // What is the same for runs that differ in rates, decay and seed only.
  struct Checked {
    std::string refused, data_hash;
    nlohmann::json model_size = nlohmann::json::object();
    std::string lacks;  // what is wrong with [tune] by; empty: the task has that metric
    double samples = 0;
    int workers = 1;
  };
  SweepRun make(const Cell& cell, FlagValues flags, std::uint64_t seed, bool tuning) const;
  const Checked& checked(const FlagValues& flags) const;
  Checked check(const FlagValues& flags) const;
  std::string why_not(const Cell& cell) const;
  void check_all() const;
  void check_method(const Cell& cell) const;
  void check_axes(const Cell& cell) const;

  SweepOptions options_;
  Experiment experiment_;
  std::filesystem::path out_;
  std::vector<Cell> cells_;
  mutable std::map<std::string, Checked> checked_;                    // by arguments
  mutable std::map<std::string, std::shared_ptr<const Task>> tasks_;  // by the flags that make them
};

}  // namespace pride::app
