// RunData: the results of a run, read from `pride train`'s folder.
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
  std::string label = {};       // of the method, as named by the comparison or the sweep
  std::string source = {};      // the folder that was asked for
  std::string folder = {};      // of the run
  std::string error = {};       // why there is no result; empty: there is one
  std::string command = {};     // that repeats it
  nlohmann::json summary = {};  // null if there is none
  std::map<std::string, double> final = {};       // of the last evaluation
  std::map<std::string, Curve> evaluations = {};  // by metric
  // "loss", "lr", "grad_norm": means over at most kBins stretches of steps.
  std::map<std::string, Curve> steps = {};
  Curve sent = {};        // bytes of the rank that sends most, from the start to some steps
  double first_loss = 0;  // of step 1: depends on initial values and first batch, not on the method
  // Sent by the rank that sends most: mean over all steps, and over the last tenth of them.
  double bytes_per_step = 0, late_bytes_per_step = 0;
  std::size_t n_steps = 0;  // of metrics.jsonl
  bool cut_short = false;   // metrics.jsonl: its last line is incomplete and was dropped
  bool tuning = false;      // it served only to choose settings
  bool diverged = false;    // a final metric is not finite; `error` says so

  bool ok() const noexcept { return error.empty(); }
  bool interrupted() const { return summary.value("interrupted", false); }
  double step_ms() const { return summary.at("step_ms"); }
  double compute_ms() const;  // the same without the exchange
  int world() const { return summary.at("world"); }
  double parameters() const { return summary.at("model").at("parameters"); }
  double steps_per_epoch() const;
  double sent_until(double step) const;
};

// Reads `run.folder`. An error goes to `run.error`, with the file's name, and there is no summary;
// an earlier error stays.
void read_run(RunData& run);

inline constexpr std::size_t kBins = 100;

// A folder's data about all of its runs, from sweep.json if it exists.
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
// be read has an error with the file's name. A run whose folder was already loaded, under any name,
// stays one run, with the sweep's description if there is one. Throws DataError if the folder is
// none of these.
void load_runs(const std::filesystem::path& folder, Loaded& into);

}  // namespace pride::app
