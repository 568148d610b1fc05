// ComparePlan: which runs a comparison is made of, and the command line of each.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "compare/options.h"
#include "train/task.h"

namespace pride::app {

// One line of the table.
struct Contender {
  std::string label;  // also the name of its folder
  std::string method;
  FlagValues flags;  // of its runs, but for method, rate, seed and folder
  FlagValues own;    // of these, the ones that --set gave
  double rate = 0;   // asked for or the method's default; with --tune, where the search starts
};

struct Run {
  std::string label;
  double rate = 0;
  std::uint64_t seed = 0;
  bool tuning = false;
  std::vector<std::string> arguments = {};  // of `pride train`, but for --out and what goes with it
  nlohmann::json settings = {};             // what summary.json will say under "settings"
  std::string data_hash = {};               // and under "data"
  nlohmann::json model_size = nlohmann::json::object();  // and under "model", "size"
  std::filesystem::path folder = {};
};

class ComparePlan {
 public:
  // Throws InvalidArgument on whatever can be known to fail before the first run: unknown methods,
  // flags, options or values, a bad --set, runs in the folder that had other settings or data.
  // Loads the data, and throws DataError if it cannot.
  ComparePlan(CompareOptions options, const FlagValues& given);

  const CompareOptions& options() const noexcept { return options_; }
  const std::vector<Contender>& contenders() const noexcept { return contenders_; }
  const FlagValues& shared() const noexcept { return shared_; }

  Run run(const Contender& who, double rate, std::uint64_t seed) const;

 private:
  void add_contender(const std::string& text);
  void apply_set(const std::string& text);
  void check_contender(Contender& who) const;
  void check_runs();
  std::shared_ptr<const Task> check_run(const Contender& who, std::uint64_t seed,
                                        std::shared_ptr<const Task> task) const;
  void check_folder() const;
  void check_earlier_runs(const Contender& who) const;

  CompareOptions options_;
  FlagValues shared_;
  std::vector<Contender> contenders_;
  std::string data_hash_;
  nlohmann::json model_size_;
};

// True if the run with this summary was the wanted one; else `what` is the first setting that
// differs, or the hash of the data, or the sizes, initial deviations and hash of --init of the
// model, for people. Settings that can change
// neither a result nor its bytes are left out; one that an older version did not record counts as
// its default. Throws nlohmann::json::exception on what is no summary.
bool same_run(const nlohmann::json& summary, const Run& wanted, std::string& what);

}  // namespace pride::app
