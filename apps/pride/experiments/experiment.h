// Experiment: which runs `pride sweep` and `pride compare` make. docs/experiments.md has the format
// of its file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "experiments/search.h"
#include "pride/train/flags.h"
#include "train_names.h"

namespace pride::app {

// Flags of `pride train` by name without dashes, each with its values as texts.
using FlagValues = std::map<std::string, std::vector<std::string>>;

inline constexpr const char* kMethodOption = "method-opt";

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
  FlagValues flags = {};    // other values than the runs have, e.g. steps
  std::vector<Axis> grid = {};
};

struct Experiment {
  std::string where;  // begins errors: the file, or the command
  std::string name;   // of the file, without ending
  std::string title = {}, note = {};
  std::string text = {};   // the whole file
  FlagValues shared = {};  // [train]
  std::vector<Grid> grids = {};
  std::map<std::string, OwnSettings> own = {};  // by label
  std::optional<Tuning> tune = {};
  bool all_or_none = false;  // a run that `pride train` would refuse is an error before any is made
};

// The flag that a key of a file or of --set means; null if there is none. Of "no-overlap" it is
// overlap, and `value` is turned round.
const Flag* flag_of(const std::string& key, std::string& value);

// Throws InvalidArgument unless folders can be named after the label: letters, digits, '-', '_' and
// '.', 100 at most. `where` begins the text.
void check_label(const std::string& where, const std::string& label);

// Throws DataError: no such file, no TOML; InvalidArgument, naming file, line and key: a key that
// is not known, a value of the wrong kind, an empty list, a label that no grid has.
Experiment read_experiment(const std::filesystem::path& file);

// One combination of an experiment's settings, but for the seed.
struct Cell {
  std::string label;
  FlagValues flags;   // of `pride train`, method included; no seed
  Point varied = {};  // of these, those in which cells of the label differ
  std::vector<std::uint64_t> seeds = {};
  std::vector<Axis> tune = {};  // with [tune]: the grid
};

// All cells, grid by grid, each once. `more`: flags of the command line, instead of the file's.
// Throws InvalidArgument if they mean more runs than a sweep may have.
std::vector<Cell> cells_of(const Experiment& experiment, const FlagValues& more);

// The flags with those of the point instead.
FlagValues with_point(FlagValues flags, const Point& point);

}  // namespace pride::app
