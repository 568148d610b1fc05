// SPDX-License-Identifier: Apache-2.0
#include "experiments/plan.h"

#include <algorithm>
#include <set>

#include "pride/error.h"
#include "pride/random_bits.h"
#include "pride/registry.h"
#include "pride/train/flags.h"
#include "train/facts_json.h"
#include "train/hex.h"
#include "train/text/utf8.h"
#include "train_names.h"

namespace pride::app {
namespace fs = std::filesystem;
namespace {

// bytes of a folder's name that say what the run is; a seed and a hash follow, and 255 is the limit
constexpr std::size_t kLongestName = 200;

// flags that can change neither whether a run begins nor how long it is
const std::set<std::string> kOnlyNumbers = {"lr", "weight-decay", "seed"};

// A flag that decides parameters or bytes; where data lie, their hash does.
bool decides(const std::string& flag) {
  const Role role = role_of(flag);
  return role != Role::kData && role != Role::kSpeed && role != Role::kOutput;
}

std::uint64_t hash_of(const std::vector<std::string>& words) {
  std::uint64_t hash = words.size();
  for (const std::string& word : words) {
    hash = mix64(hash, word.size());
    for (const char c : word) hash = mix64(hash, static_cast<unsigned char>(c));
  }
  return hash;
}

std::string for_file_name(std::string text) {
  for (char& c : text) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.';
    if (!plain) c = '_';
  }
  return text;
}

std::string id_of(const Run& run, const Point& varied, const FlagValues& flags) {
  FlagValues deciding = flags;
  std::erase_if(deciding, [](const auto& entry) { return !decides(entry.first); });
  std::vector<std::string> words = arguments_of(deciding);
  words.push_back(run.data_hash);
  const std::string init = run.model_size.value("init_hash", "");
  if (!init.empty()) words.push_back(init);
  std::string id = concat(run.tuning ? "tune-" : "", run.label);
  for (const auto& [flag, value] : varied) {
    if (role_of(flag) != Role::kData) id += concat("-", flag, "=", for_file_name(value));
  }
  // what is cut off is in the hash
  if (id.size() > kLongestName) id.resize(kLongestName);
  return concat(id, "-seed=", run.seed, "-", hex16(hash_of(words)).substr(0, 10));
}

// --epochs and --steps exclude each other.
std::vector<std::string> with_rival(const std::string& flag) {
  if (flag == "steps") return {flag, "epochs"};
  if (flag == "epochs") return {flag, "steps"};
  return {flag};
}

// The command line wins over plain keys of [tune]; what its grids choose it cannot set.
void overrule_tuning(const FlagValues& given, Experiment& experiment) {
  if (!experiment.tune) return;
  const auto refuse_in = [&](const std::vector<Axis>& axes, const std::string& table) {
    for (const Axis& axis : axes) {
      for (const std::string& flag : with_rival(axis.flag)) {
        PRIDE_CHECK(!given.contains(flag), flag == "data" ? "--" : "--set ", flag, ": [", table,
                    "] of ", experiment.where, " chooses --", axis.flag,
                    " for each cell; change it there");
      }
    }
  };
  refuse_in(experiment.tune->grid, "tune.grid");
  for (const auto& [label, own] : experiment.own) refuse_in(own.tune, "method." + label + ".tune");
  for (const auto& [flag, values] : given) {
    for (const std::string& gone : with_rival(flag)) experiment.tune->flags.erase(gone);
  }
}

}  // namespace

ExperimentPlan::ExperimentPlan(Experiment experiment, const FlagValues& given, fs::path out)
    : experiment_(std::move(experiment)), given_(given), out_(std::move(out)) {
  overrule_tuning(given_, experiment_);
  cells_ = cells_of(experiment_, given_);
  for (Cell& cell : cells_) {
    cell.flags.emplace("workers", std::vector{std::to_string(kDefaultWorkers)});
  }
  for (const Cell& cell : cells_) check_axes(cell);
  check_all();
}

// What [tune] chooses cannot tell cells apart as well: the name would tell another value than the
// run.
void ExperimentPlan::check_axes(const Cell& cell) const {
  for (const Axis& axis : cell.tune) {
    for (const std::string& rival : with_rival(axis.flag)) {
      const auto same = [&](const auto& one) { return one.first == rival; };
      PRIDE_CHECK(std::ranges::none_of(cell.varied, same), experiment_.where, ": ", cell.label,
                  " has several values of --", rival, ", and its [tune.grid] chooses --",
                  axis.flag);
    }
  }
}

// Why none of the cell's runs can begin, in the words of the first; empty if one can.
std::string ExperimentPlan::why_not(const Cell& cell) const {
  const std::uint64_t seed = cell.seeds.front();
  std::vector<Point> points = combinations(cell.tune);
  if (experiment_.all_or_none) points = {points[next_point(cell.tune, {}).value_or(0)]};
  std::string first;
  for (const Point& point : points) {
    std::string refused = experiment_.tune ? tuning_run(cell, point).refused : "";
    if (refused.empty()) refused = final_run(cell, point, seed).refused;
    if (refused.empty()) return "";
    if (first.empty()) first = refused;
  }
  return first;
}

// A name that no method has is a slip of the pen, to be told now and not after hours.
void ExperimentPlan::check_method(const Cell& cell) const {
  try {
    method_info(cell.flags.at("method").front(), 1);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(concat(experiment_.where, ": ", cell.label, ": ", error.what()));
  }
}

// A file of which nothing can be run is a mistake, not a sweep in which all runs failed.
void ExperimentPlan::check_all() const {
  std::string first;
  bool some = false;
  for (const Cell& cell : cells_) {
    check_method(cell);
    const std::string& lacks = checked(cell.flags).lacks;
    PRIDE_CHECK(lacks.empty(), experiment_.where, ": ", lacks);
    if (some && !experiment_.all_or_none) continue;
    const std::string refused = why_not(cell);
    PRIDE_CHECK(refused.empty() || !experiment_.all_or_none, cell.label, ": ", refused);
    some = some || refused.empty();
    if (first.empty() && !some) first = concat(cell.label, ": ", refused);
  }
  PRIDE_CHECK(some, experiment_.where, ": ", first);
}

const ExperimentPlan::Checked& ExperimentPlan::checked(const FlagValues& flags) const {
  FlagValues deciding = flags;
  for (const std::string& flag : kOnlyNumbers) deciding.erase(flag);
  std::string key;
  for (const std::string& argument : arguments_of(deciding)) key += argument + "\n";
  const auto found = checked_.find(key);
  return found != checked_.end() ? found->second
                                 : checked_.emplace(key, check(deciding)).first->second;
}

ExperimentPlan::Checked ExperimentPlan::check(const FlagValues& flags) const {
  Checked result;
  try {
    const TrainOptions options = parse_train(arguments_of(flags));
    std::string made_by;
    for (const auto& [flag, values] : flags) {
      const Role role = role_of(flag);
      if (role == Role::kTask || role == Role::kData) made_by += flag + "=" + values.front() + "\n";
    }
    std::shared_ptr<const Task>& task = tasks_[made_by];
    if (!task) task = make_task(options);
    result.data_hash = task->data().hash;
    result.model_size = to_json(task->model().size);
    if (experiment_.tune && !has_fact(task->eval_metrics({.count = 1}), experiment_.tune->by)) {
      result.lacks = concat("[tune] by = \"", experiment_.tune->by, "\": the task ", task->name(),
                            " has no ", experiment_.tune->by, ", only a loss");
    }
    const TrainPlan plan = dry_run(options, task);
    result.samples = static_cast<double>(plan.samples_per_step()) * static_cast<double>(plan.steps);
    result.workers = plan.world;
  } catch (const InvalidArgument& error) {
    result.refused = error.what();
  }
  return result;
}

Run ExperimentPlan::make(const Cell& cell, FlagValues flags, std::uint64_t seed,
                         bool tuning) const {
  const Checked& known = checked(flags);
  Run made{.label = cell.label, .seed = seed, .tuning = tuning};
  made.refused = known.refused;
  made.samples = known.samples;
  made.workers = known.workers;
  flags["seed"] = {std::to_string(seed)};
  made.arguments = arguments_of(flags);
  made.data_hash = known.data_hash;
  made.model_size = known.model_size;
  if (made.refused.empty()) {
    try {
      const TrainOptions options = parse_train(made.arguments);
      made.rate = options.lr.value_or(method_info(options.method, 1).default_lr);
      made.settings = settings_json(options);
      for (const Flag& flag : Flag::table()) {
        if (flag.role == Role::kData) made.settings.erase(flag.name);
      }
    } catch (const InvalidArgument& error) {
      made.refused = error.what();
    }
  }
  return made;
}

Run ExperimentPlan::tuning_run(const Cell& cell, const Point& point) const {
  const Tuning& tune = *experiment_.tune;
  Point instead;
  for (const auto& [flag, values] : tune.flags) {
    if (flag != "method-opt") instead.emplace_back(flag, values.front());
  }
  FlagValues flags = with_point(with_point(cell.flags, instead), point);
  const auto options = tune.flags.find("method-opt");
  if (options != tune.flags.end()) flags["method-opt"] = options->second;
  Run made = make(cell, flags, tune.seed, true);
  for (const auto& value : cell.varied) {
    const auto set_here = [&](const std::string& flag) { return tune.flags.contains(flag); };
    if (!std::ranges::any_of(with_rival(value.first), set_here)) made.varied.push_back(value);
  }
  made.varied.insert(made.varied.end(), point.begin(), point.end());
  made.id = id_of(made, made.varied, flags);
  made.folder = out_ / "runs" / made.id;
  return made;
}

Run ExperimentPlan::final_run(const Cell& cell, const Point& chosen, std::uint64_t seed) const {
  const FlagValues flags = with_point(cell.flags, chosen);
  Run made = make(cell, flags, seed, false);
  made.varied = cell.varied;
  made.id = id_of(made, made.varied, flags);
  made.folder = out_ / "runs" / made.id;
  return made;
}

bool same_run(const nlohmann::json& summary, const Run& wanted) {
  const nlohmann::json defaults = settings_json(TrainOptions());
  const nlohmann::json& recorded = summary.at("settings");
  for (const auto& [name, value] : wanted.settings.items()) {
    const bool may_differ = !decides(name) || role_of(name) == Role::kRecords;
    const auto at = recorded.find(name);
    const nlohmann::json& had = at != recorded.end() ? *at : defaults.at(name);
    if (!may_differ && had != value) return false;
  }
  return summary.at("data").at("hash") == wanted.data_hash &&
         summary.at("model").value("size", nlohmann::json::object()) == wanted.model_size;
}

}  // namespace pride::app
