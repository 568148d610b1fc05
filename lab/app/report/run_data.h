// RunData: the results of a run, read from `pride train`'s folder or, by metrics_file.h, from a
// file of a PyTorch program.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
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
  std::string label = {};       // label of the comparison or the sweep; else the method
  std::string source = {};      // the folder that load_runs() was given
  std::string folder = {};      // the run's folder, or the file of --metrics
  std::string error = {};       // the reason why there is no result; empty: there is one
  std::string command = {};     // command that repeats the run
  nlohmann::json summary = {};  // summary.json; null if there is none. Of a file of --metrics only
                                // what it says: some values may be missing
  std::map<std::string, double> final = {};       // metrics of the last evaluation
  std::map<std::string, Curve> evaluations = {};  // by metric
  // "loss", "lr", "grad_norm": means over at most kBins bins of steps.
  std::map<std::string, Curve> steps = {};
  Curve sent = {};        // bytes of the rank that sends most, from the start to some steps
  double first_loss = 0;  // in step 1; depends on initial values and first batch, not on the method
  // Bytes of the rank that sends most: mean over all steps, and over the last tenth of them.
  double bytes_per_step = 0, late_bytes_per_step = 0;
  std::size_t n_steps = 0;  // steps in metrics.jsonl
  bool cut_short = false;   // the last line of metrics.jsonl was incomplete and was dropped
  bool tuning = false;      // a run of [tune] or --tune
  bool diverged = false;    // a final metric is not finite; `error` says so
  bool of_file = false;     // of --metrics: units, bytes and times are what the file says
  std::vector<std::string> notes = {};  // what a reader must know of the file

  bool ok() const noexcept { return error.empty(); }
  bool interrupted() const { return summary.value("interrupted", false); }
  // NaN if unknown, the world 0; in a file of --metrics each may be.
  double step_ms() const { return summary.value("step_ms", NAN); }
  int world() const { return summary.value("world", 0); }
  double parameters() const { return summary.at("model").value("parameters", NAN); }
  double epochs() const { return summary.value("epochs", NAN); }
  double steps_per_epoch() const;

  double compute_ms() const;  // milliseconds of a step without the exchange
  double sent_until(double step) const;
};

// Reads run.folder. On failure sets run.error, with the file's name, and run.summary to null. An
// earlier run.error stays.
void read_run(RunData& run);

inline constexpr std::size_t kBins = 100;

// Means over at most kBins bins of equal length; a bin with a value that is not finite has a mean
// that is not.
Curve binned(const Curve& curve);

// A folder's data about all its runs, from sweep.json if it exists.
struct Source {
  std::string name, title = {}, note = {}, file = {};  // file: the text of the experiment file
  bool complete = true;
  int missing = 0;
};

struct Loaded {
  std::vector<Source> sources;
  std::vector<RunData> runs;
  std::map<std::filesystem::path, std::size_t> places = {};  // index in runs, by canonical folder
};

// Adds the runs of a folder of `pride sweep`, `pride compare` or `pride train`. A run that cannot
// be read has an error with the file's name. A folder that is loaded twice, under any name, is one
// run, with the sweep's description if there is one. Throws DataError if the folder has no runs.
void load_runs(const std::filesystem::path& folder, Loaded& into);

}  // namespace pride::app
