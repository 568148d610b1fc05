// Experiment: the runs of `pride sweep` and `pride compare`. lab/docs/experiments.md has the format
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

// [grid]: every combination of labels, seeds and axes is run.
struct Grid {
  std::vector<std::string> labels;   // of [grid] method
  std::vector<std::uint64_t> seeds;  // of [grid] seed
  std::vector<Axis> axes;            // the other flags
};

// [method.LABEL]: settings for the runs of one label only.
struct OwnSettings {
  std::string method;                     // --method; default: the label
  std::vector<Axis> axes = {};            // override shared values and axes of the same flags
  std::vector<std::string> options = {};  // method-opt
  std::vector<Axis> tune = {};            // override axes of [tune.grid] of the same flags
  unsigned line = 0;                      // number of its line in the file
};

// [tune]: chooses the best point of a grid before the runs, on a seed that they do not have.
struct Tuning {
  std::uint64_t seed = 100;
  std::string by = "loss";  // lowest; or "accuracy", highest
  bool climb = false;       // search = "climb", from the middle of the grid; false: every point
  FlagValues flags = {};    // values that differ from the runs', e.g. steps
  std::vector<Axis> grid = {};
};

struct Experiment {
  std::string where;  // begins error texts: the file, or the command
  std::string name;   // name of the file, without extension
  std::string title = {}, note = {};
  std::string text = {};   // the whole file
  FlagValues shared = {};  // [train]
  std::vector<Grid> grids = {};
  std::map<std::string, OwnSettings> own = {};  // by label
  std::optional<Tuning> tune = {};
  bool all_or_none =
      false;  // a run that `pride train` would refuse is an error before any run starts
};

// The flag of a key in a file or in --set; null if there is none. For "no-overlap" it returns
// overlap and inverts `value`.
const Flag* flag_of(const std::string& key, std::string& value);

// Throws InvalidArgument unless the label can be a folder's name: at most 100 letters, digits, '-',
// '_' and '.'. `where` begins the error text.
void check_label(const std::string& where, const std::string& label);

// Throws DataError if the file is missing or not TOML. Throws InvalidArgument, naming file, line
// and key, on an unknown key, a value of the wrong kind, an empty list, or a label that no grid
// has.
Experiment read_experiment(const std::filesystem::path& file);

// One combination of an experiment's settings, without the seed.
struct Cell {
  std::string label;
  FlagValues flags;   // of `pride train`, with method, without seed
  Point varied = {};  // the flags in which cells of the label differ
  std::vector<std::uint64_t> seeds = {};
  std::vector<Axis> tune = {};  // with [tune]: its grid for this cell
};

// All cells, grid by grid, without repetition. `more`: flags of the command line, which override
// the file's. Throws InvalidArgument if there are more than 10,000 runs.
std::vector<Cell> cells_of(const Experiment& experiment, const FlagValues& more);

// The flags, overridden by those of the point.
FlagValues with_point(FlagValues flags, const Point& point);

}  // namespace pride::app
