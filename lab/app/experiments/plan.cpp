// SPDX-License-Identifier: Apache-2.0
#include "experiments/plan.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <set>

#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "pride/optimizer.h"
#include "pride/random_bits.h"
#include "pride/registry.h"
#include "pride/virtual_workers.h"
#include "program/hex.h"
#include "train/facts_json.h"
#include "train/flags.h"

namespace pride::app {
namespace fs = std::filesystem;
namespace {

// bytes of a folder's name before the seed and the hash; file systems allow 255
constexpr std::size_t kLongestName = 200;

// flags that do not affect whether a run is refused, and its length
const std::set<std::string> kOnlyNumbers = {"lr", "weight-decay", "seed"};

// True if a flag affects parameters or bytes. Paths of data do not: the hash of the data does.
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

std::string id_of(const Run& run, const FlagValues& flags) {
  FlagValues deciding = flags;
  std::erase_if(deciding, [](const auto& entry) { return !decides(entry.first); });
  std::vector<std::string> words = words_of(deciding);
  words.push_back(run.data_hash);
  const std::string init = run.model_size.value("init_hash", "");
  if (!init.empty()) words.push_back(init);
  std::string id = concat(run.tuning ? "tune-" : "", run.label);
  for (const auto& [flag, value] : run.varied) {
    if (role_of(flag) != Role::kData) id += concat("-", flag, "=", for_file_name(value));
  }
  // the hash below covers the whole id
  if (id.size() > kLongestName) id.resize(kLongestName);
  return concat(id, "-seed=", run.seed, "-", hex16(hash_of(words)).substr(0, 10));
}

nlohmann::json settings_json(const TrainOptions& options) {
  return nlohmann::json::parse(to_json(options).dump());
}

// Prepares a run up to its first step, on one rank. `pride train` can then refuse it only for its
// device or for lack of memory. Throws InvalidArgument, DataError.
TrainPlan dry_run(const TrainOptions& options, std::shared_ptr<const Task> task) {
  TrainPlan plan = make_plan(options, options.workers, std::move(task));
  OptimizerOptions alike = plan.optimizer;
  alike.overlap = false;  // no threads needed for a check
  Layout layout = layout_of(*plan.task->model().make(), options);
  if (options.virtual_workers > 0) {
    const VirtualWorkers workers(std::move(layout), alike, {options.virtual_workers});
  } else {
    const auto alone = make_thread_world(1);
    const Optimizer optimizer(*alone.front(), std::move(layout), alike);
  }
  const Sampler sampler(plan.task->n_samples(), plan.task->labels(),
                        {.sharding = plan.sharding, .seed = options.seed, .world = plan.world});
  return plan;
}

// The flag, and the flag that excludes it: --epochs and --steps.
std::vector<std::string> with_rival(const std::string& flag) {
  if (flag == "steps") return {flag, "epochs"};
  if (flag == "epochs") return {flag, "steps"};
  return {flag};
}

// The command line overrides plain keys of [tune]; it cannot set flags that its grids choose.
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

// Refuses cells that differ in a flag that [tune] chooses: a name would show another value than its
// run has.
void check_axes(const Experiment& experiment, const Cell& cell) {
  for (const Axis& axis : cell.tune) {
    for (const std::string& rival : with_rival(axis.flag)) {
      PRIDE_CHECK(std::ranges::count(cell.varied, rival, &Point::value_type::first) == 0,
                  experiment.where, ": ", cell.label, " has several values of --", rival,
                  ", and its [tune.grid] chooses --", axis.flag);
    }
  }
}

// Refuses an unknown method before the first run.
void check_method(const Experiment& experiment, const Cell& cell) {
  try {
    method_info(cell.flags.at("method").front(), 1);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(concat(experiment.where, ": ", cell.label, ": ", error.what()));
  }
}

// Fills axes without values with rates around the rate of a run.
void fill_rates(Cell& cell, const Run& run) {
  for (Axis& axis : cell.tune) {
    if (!axis.values.empty()) continue;
    PRIDE_CHECK(run.refused.empty(), cell.label, ": ", run.refused);
    try {
      axis = rate_axis(parse_train(words_of(cell.flags)).lr.value_or(run.rate));
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(concat(cell.label, ": ", error.what()));
    }
  }
}

}  // namespace

std::vector<std::string> words_of(const FlagValues& flags) {
  std::vector<std::string> arguments;
  for (const auto& [name, values] : flags) {
    for (const std::string& value : values) arguments.push_back(concat("--", name, "=", value));
  }
  return arguments;
}

TrainOptions parse_train(const std::vector<std::string>& arguments) {
  TrainOptions options;
  CLI::App app("", "pride train");
  add_train_flags(app, options);
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // CLI11 needs this
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    throw InvalidArgument(error.what());
  }
  check(options);
  if (options.batch == 0) options.batch = task_info(options.task).default_batch;
  return options;
}

ExperimentPlan::ExperimentPlan(Experiment wanted, FlagValues instead, fs::path folder)
    : experiment(std::move(wanted)), given(std::move(instead)), out(std::move(folder)) {
  overrule_tuning(given, experiment);
  cells = cells_of(experiment, given);
  for (Cell& cell : cells) {
    cell.flags.emplace("workers", std::vector{std::to_string(kDefaultWorkers)});
  }
  for (const Cell& cell : cells) check_axes(experiment, cell);
  // if no run can start, this is an error in the file, not a sweep of failed runs
  std::string first;
  bool some = false;
  for (Cell& cell : cells) {
    check_method(experiment, cell);
    fill_rates(cell, checked(cell.flags));  // throws if the task lacks the metric of [tune]
    if (some && !experiment.all_or_none) continue;
    const std::string refused = why_not(cell);
    PRIDE_CHECK(refused.empty() || !experiment.all_or_none, cell.label, ": ", refused);
    some = some || refused.empty();
    if (first.empty() && !some) first = concat(cell.label, ": ", refused);
  }
  PRIDE_CHECK(some, experiment.where, ": ", first);
}

// The error of the cell's first run, if none of its runs can begin; empty if one can.
std::string ExperimentPlan::why_not(const Cell& cell) const {
  std::vector<Point> points = combinations(cell.tune);
  if (experiment.all_or_none) points = {points[next_point(cell.tune, {}).value_or(0)]};
  std::string first;
  for (const Point& point : points) {
    std::string refused = experiment.tune ? tuning_run(cell, point).refused : "";
    if (refused.empty()) refused = final_run(cell, point, cell.seeds.front()).refused;
    if (refused.empty()) return "";
    if (first.empty()) first = refused;
  }
  return first;
}

const Run& ExperimentPlan::checked(FlagValues flags) const {
  for (const std::string& flag : kOnlyNumbers) flags.erase(flag);
  const auto found = checked_.find(flags);
  return found != checked_.end() ? found->second
                                 : checked_.emplace(flags, check(flags)).first->second;
}

Run ExperimentPlan::check(const FlagValues& flags) const {
  Run result;
  std::string lacks;
  try {
    const TrainOptions options = parse_train(words_of(flags));
    FlagValues made_by = flags;
    std::erase_if(made_by, [](const auto& entry) {
      return role_of(entry.first) != Role::kTask && role_of(entry.first) != Role::kData;
    });
    std::shared_ptr<const Task>& task = tasks_[made_by];
    if (!task) task = make_task(options);
    result.data_hash = task->data().hash;
    result.model_size = to_json(task->model().size);
    if (experiment.tune && !has_fact(task->eval_metrics({.count = 1}), experiment.tune->by)) {
      lacks = concat("[tune] by = \"", experiment.tune->by, "\": the task ", task->name(),
                     " has no ", experiment.tune->by, ", only a loss");
    }
    const TrainPlan plan = dry_run(options, task);
    result.samples = static_cast<double>(plan.samples_per_step()) * static_cast<double>(plan.steps);
    result.workers = plan.world;
    result.rate = plan.peak_lr;
  } catch (const InvalidArgument& error) {
    result.refused = error.what();
  }
  PRIDE_CHECK(lacks.empty(), experiment.where, ": ", lacks);
  return result;
}

Run ExperimentPlan::make(const Cell& cell, FlagValues flags, std::uint64_t seed, Point varied,
                         bool tuning) const {
  Run made = checked(flags);
  made.label = cell.label;
  made.seed = seed;
  made.tuning = tuning;
  made.varied = std::move(varied);
  made.id = id_of(made, flags);
  made.folder = out / "runs" / made.id;
  flags["seed"] = {std::to_string(seed)};
  made.arguments = words_of(flags);
  if (!made.refused.empty()) return made;
  try {
    const TrainOptions options = parse_train(made.arguments);
    made.rate = options.lr.value_or(made.rate);
    made.settings = settings_json(options);
    for (const Flag& flag : Flag::table()) {
      if (flag.role == Role::kData) made.settings.erase(flag.name);
    }
  } catch (const InvalidArgument& error) {
    made.refused = error.what();
  }
  return made;
}

Run ExperimentPlan::tuning_run(const Cell& cell, const Point& point) const {
  const Tuning& tune = *experiment.tune;
  Point instead;
  for (const auto& [flag, values] : tune.flags) {
    if (flag != kMethodOption) instead.emplace_back(flag, values.front());
  }
  FlagValues flags = with_point(with_point(cell.flags, instead), point);
  const auto options = tune.flags.find(kMethodOption);
  if (options != tune.flags.end()) flags[kMethodOption] = options->second;
  Point varied;
  for (const auto& value : cell.varied) {
    const auto set_here = [&](const std::string& flag) { return tune.flags.contains(flag); };
    if (std::ranges::none_of(with_rival(value.first), set_here)) varied.push_back(value);
  }
  varied.insert(varied.end(), point.begin(), point.end());
  return make(cell, std::move(flags), tune.seed, std::move(varied), true);
}

Run ExperimentPlan::final_run(const Cell& cell, const Point& chosen, std::uint64_t seed) const {
  return make(cell, with_point(cell.flags, chosen), seed, cell.varied, false);
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
