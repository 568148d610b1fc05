// RunData: a run as the report sees it, read from the folder that `pride train` wrote.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace pride::app {

// Values at steps, in the order of the steps.
using Curve = std::vector<std::pair<double, double>>;

struct RunData {
  std::string label = {};       // of the method, as the comparison or the sweep called it
  std::string source = {};      // the folder that was asked for
  std::string folder = {};      // of the run
  std::string error = {};       // why there is no result; empty: there is one
  std::string command = {};     // that repeats it
  nlohmann::json summary = {};  // null if there is none
  std::map<std::string, double> final = {};       // of the last evaluation
  std::map<std::string, Curve> evaluations = {};  // by metric
  Curve train_loss = {};                          // means over at most kBins stretches of steps
  double bytes_per_step = 0;                      // sent by the rank that sends most
  bool tuning = false;                            // it served to choose settings only
  bool diverged = false;                          // a final metric is not finite; `error` says so

  bool ok() const noexcept { return error.empty(); }
  double steps_per_epoch() const;
};

inline constexpr std::size_t kBins = 100;

// What a folder, or sweep.json in it, says of a whole.
struct Source {
  std::string name, title = {}, note = {}, file = {};  // of a sweep: its experiment file
  bool complete = true;
  int missing = 0;
};

struct Loaded {
  std::vector<Source> sources;
  std::vector<RunData> runs;
  std::map<std::filesystem::path, std::size_t> places = {};  // of each run, by its canonical folder
};

// Adds the runs of a folder of `pride sweep`, `pride compare` or `pride train`. A run that cannot
// be read has an error with the file's name. A run whose folder was loaded already, by whatever
// name, stays one: as the sweep describes it, if one does. Throws DataError if the folder is none
// of these.
void load_runs(const std::filesystem::path& folder, Loaded& into);

}  // namespace pride::app
