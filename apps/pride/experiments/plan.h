// ExperimentPlan: the runs that an experiment is made of, each with its command line and its
// folder.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/cells.h"
#include "pride/train/task.h"
#include "train_names.h"

namespace pride::app {

struct Run {
  std::string label;
  double rate = 0;
  std::uint64_t seed = 0;
  bool tuning = false;
  std::vector<std::string> arguments = {};  // of `pride train`, but for --out and what goes with it
  nlohmann::json settings = {};             // what summary.json will say under "settings"
  std::string data_hash = {};               // and under "data"
  nlohmann::json model_size = nlohmann::json::object();  // and under "model", "size"
  std::filesystem::path folder = {};                     // OUT/runs/ID
  std::string id = {};  // made of label, settings, seed, and a hash of all that decides the result
  Point varied = {};    // what tells the cell from others of its label
  std::string refused = {};  // why `pride train` would not begin; empty if it would
  double samples = 0;        // that all its steps see
  int workers = 1;
};

class ExperimentPlan {
 public:
  // `given`: flags instead of the experiment's own. Throws InvalidArgument on what is wrong with
  // the experiment, if a task has not what [tune] chooses by, and if every run would be refused, or
  // with all_or_none one of them (with the words of the first); DataError if the data cannot be
  // loaded.
  ExperimentPlan(Experiment experiment, const FlagValues& given, std::filesystem::path out);

  const Experiment& experiment() const noexcept { return experiment_; }
  const FlagValues& given() const noexcept { return given_; }
  const std::filesystem::path& out() const noexcept { return out_; }
  const std::vector<Cell>& cells() const noexcept { return cells_; }

  // With [tune]: the run that tries the point for the cell. Cells that differ in nothing but what
  // [tune] sets have the same.
  Run tuning_run(const Cell& cell, const Point& point) const;
  // The run of the experiment itself; `chosen` by tuning, else empty.
  Run final_run(const Cell& cell, const Point& chosen, std::uint64_t seed) const;

 private:
  // What is the same for runs that differ in rates, decay and seed only.
  struct Checked {
    std::string refused, data_hash;
    nlohmann::json model_size = nlohmann::json::object();
    std::string lacks;  // what is wrong with [tune] by; empty: the task has that metric
    double samples = 0;
    int workers = 1;
  };
  Run make(const Cell& cell, FlagValues flags, std::uint64_t seed, bool tuning) const;
  const Checked& checked(const FlagValues& flags) const;
  Checked check(const FlagValues& flags) const;
  std::string why_not(const Cell& cell) const;
  void check_all() const;
  void check_method(const Cell& cell) const;
  void check_axes(const Cell& cell) const;

  Experiment experiment_;
  FlagValues given_;
  std::filesystem::path out_;
  std::vector<Cell> cells_;
  mutable std::map<std::string, Checked> checked_;                    // by arguments
  mutable std::map<std::string, std::shared_ptr<const Task>> tasks_;  // by the flags that make them
};

// True if the run with this summary was the wanted one. Settings that can change neither a result
// nor its bytes are left out; one that an older version did not record counts as its default.
// Throws nlohmann::json::exception on what is no summary.
bool same_run(const nlohmann::json& summary, const Run& wanted);

}  // namespace pride::app
