// Experiment: a TOML file that says which runs `pride sweep` makes. docs/experiments.md has the
// format.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "compare/options.h"

namespace pride::app {

// A flag of `pride train` and the values that it takes in turn.
struct Axis {
  std::string flag;
  std::vector<std::string> values;
};

// Every combination of its axes is run.
struct Grid {
  std::vector<std::string> labels;   // of [grid] method
  std::vector<std::uint64_t> seeds;  // of [grid] seed
  std::vector<Axis> axes;            // the other flags
};

// [method.LABEL]: what holds for the runs of one label only.
struct OwnSettings {
  std::string method;                     // of `pride train`; if not given, the label
  std::vector<Axis> axes = {};            // instead of the value or the axis that all have
  std::vector<std::string> options = {};  // method-opt
  std::vector<Axis> tune = {};            // instead of the axes of [tune.grid] of the same flag
  unsigned line = 0;                      // of the file
};

// [tune]: before the runs, the best point of a grid is chosen on a seed that is not among theirs.
struct Tuning {
  std::uint64_t seed = 100;
  std::string by = "loss";  // lowest; or "accuracy", highest
  bool climb = false;       // search: "climb" from the middle of the grid; else every point
  FlagValues flags;         // other values than the runs have, e.g. steps
  std::vector<Axis> grid;
};

struct Experiment {
  std::string name;  // of the file, without ending
  std::string title, note;
  std::string text;   // the whole file
  FlagValues shared;  // [train]
  std::vector<Grid> grids;
  std::map<std::string, OwnSettings> own;  // by label
  std::optional<Tuning> tune;
};

// The flags of `pride train` that an experiment may give its runs: all but those that a sweep sets
// itself, or that mean nothing for its runs.
const std::set<std::string>& flags_of_runs();

// Throws DataError: no such file, no TOML; InvalidArgument, naming file, line and key: a key that
// is not known, a value of the wrong kind, an empty list, a label that no grid has.
Experiment read_experiment(const std::filesystem::path& file);

}  // namespace pride::app
