// ExperimentPlan: the runs of an experiment, each with its command line and folder.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/experiment.h"
#include "pride/train/plan.h"
#include "train_names.h"

namespace pride::app {

// "--name=value" for each value of each flag.
std::vector<std::string> words_of(const FlagValues& flags);

// The options as `pride train` would parse them. Throws InvalidArgument.
TrainOptions parse_train(const std::vector<std::string>& arguments);

struct Run {
  // Values shared by runs that differ only in rates, decay and seed.
  std::string refused = {};    // the error with which `pride train` would refuse it; empty: none
  std::string data_hash = {};  // "data" "hash" of summary.json
  nlohmann::json model_size = nlohmann::json::object();  // "model" "size" of summary.json
  double samples = 0;                                    // samples in all its steps
  int workers = 1;
  double rate = 0;  // --lr, or the default of method and model

  std::string label = {};
  std::uint64_t seed = 0;
  bool tuning = false;
  std::vector<std::string> arguments = {};  // of `pride train`, without --out and related flags
  nlohmann::json settings = {};             // "settings" of summary.json
  Point varied = {};    // the flags that distinguish the cell from others of its label
  std::string id = {};  // label, settings, seed, and a hash of everything that affects the result
  std::filesystem::path folder = {};  // OUT/runs/ID
};

class ExperimentPlan {
 public:
  // `instead`: flags that override the experiment's. Throws InvalidArgument if the experiment is
  // invalid, if a task lacks the metric of [tune], or if `pride train` would refuse every run (with
  // all_or_none: one run), with the first run's error. Throws DataError if the data cannot be
  // loaded.
  ExperimentPlan(Experiment wanted, FlagValues instead, std::filesystem::path folder);

  // With [tune]: the run that tries the point for the cell. Cells that differ only in flags set by
  // [tune] share it.
  Run tuning_run(const Cell& cell, const Point& point) const;
  // The run of the experiment itself. `chosen`: the point that [tune] chose; empty without [tune].
  Run final_run(const Cell& cell, const Point& chosen, std::uint64_t seed) const;

  Experiment experiment;
  FlagValues given;
  std::filesystem::path out;
  std::vector<Cell> cells = {};

 private:
  Run make(const Cell& cell, FlagValues flags, std::uint64_t seed, Point varied, bool tuning) const;
  const Run& checked(FlagValues flags) const;
  Run check(const FlagValues& flags) const;
  std::string why_not(const Cell& cell) const;

  mutable std::map<FlagValues, Run> checked_;                        // by flags except kOnlyNumbers
  mutable std::map<FlagValues, std::shared_ptr<const Task>> tasks_;  // by flags that affect a task
};

// True if this summary is of the wanted run. Settings that change neither result nor bytes are
// ignored. A setting that an older version did not record counts as its default. Throws
// nlohmann::json::exception if it is not a summary.
bool same_run(const nlohmann::json& summary, const Run& wanted);

}  // namespace pride::app
