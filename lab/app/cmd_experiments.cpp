// `pride sweep` and `pride compare`: the runs of an experiment, from a file or from flags.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include "commands.h"
#include "experiments/runner.h"
#include "pride/error.h"
#include "pride/registry.h"
#include "pride/train/trainer.h"
#include "program/files.h"
#include "program/flag_values.h"
#include "program/io/folder_lock.h"
#include "program/program.h"
#include "program/utf8.h"
#include "program/world.h"
#include "train/flags.h"
#include "train/process.h"

namespace pride::app {
namespace {

namespace fs = std::filesystem;

// Options of both commands.
struct ExperimentOptions {
  std::string out;
  RunnerOptions runner;
  bool list = false, json = false;
};

struct SweepOptions : ExperimentOptions {
  std::string file;
  std::vector<std::string> set;  // FLAG=VALUE
  std::string data;
};

struct CompareOptions : ExperimentOptions {
  std::vector<std::string> methods;  // NAME, LABEL=NAME or all
  std::vector<std::uint64_t> seeds = {1, 2, 3};
  std::vector<std::string> set;  // LABEL:FLAG=VALUE
  bool tune = false;
  std::uint64_t tune_seed = 100;
  std::vector<std::string> tune_beta2;
  std::optional<double> tune_epochs;
  std::optional<std::int64_t> tune_steps;
  TrainOptions train;  // shared by all methods; only the parser's check is used
};

constexpr int kMostJobs = 1024;
constexpr const char* kGroup = "Comparison";

// Flags that --set must not change: a comparison has one task, and runs of a seed have the same
// batches.
bool is_shared(const Flag& flag) {
  return flag.rules.by_experiment || flag.role == Role::kData || flag.role == Role::kTask ||
         flag.role == Role::kBatches || flag.role == Role::kOutput;
}

// Default of --tune-beta2: averages over 10, 20, 50, 100 steps; of squares over 20, 50, 100, 1000.
const std::vector<std::string> kBeta2 = {"0.9", "0.95", "0.98", "0.99"};
const std::vector<std::string> kBeta2OfSquares = {"0.95", "0.98", "0.99", "0.999"};

void add_common_flags(CLI::App& app, ExperimentOptions& o, const std::string& out) {
  app.add_option("--out", o.out, out);
  app.add_option("--jobs", o.runner.jobs,
                 "Parallel runs. Default: as many as have cores for their workers, at least one")
      ->transform(number_reader<int>({1, kMostJobs}));
  app.add_flag("--list", o.list, "Print the runs and their results so far; run nothing");
  app.add_flag("--retry", o.runner.retry, "Repeat failed runs");
  app.add_flag("--quiet", o.runner.quiet, "No progress on standard error");
  app.add_flag("--json", o.json, "Print sweep.json instead of the table");
}

void add_what_to_compare(CLI::App& app, CompareOptions& o) {
  app.add_option("--methods", o.methods,
                 "Methods to compare, separated by commas, or all. LABEL=METHOD names an entry, "
                 "for one method with several settings")
      ->delimiter(',');
  add_value(app, "--seeds", o.seeds, "Seeds to train each method on, separated by commas");
  app.add_option("--set", o.set,
                 "A flag of `pride train` for one method, as METHOD:FLAG=VALUE, e.g. dgc:lr=0.1 or "
                 "dgc:method-opt=ratio=0.01; may be repeated. It overrides the value for all "
                 "methods (for --method-opt, of the same key)")
      ->allow_extra_args(false);
}

void add_tuning(CLI::App& app, CompareOptions& o) {
  app.add_flag("--tune", o.tune,
               "First tune each method's learning rate (1, 3, 10, ...) and beta2 (--tune-beta2) by "
               "the final loss on --tune-seed. The search starts next to the rate of a run without "
               "--tune and stops when no neighbour of the best point is better");
  app.add_option("--tune-beta2", o.tune_beta2,
                 "Values of beta2 for --tune, ascending, separated by commas; none: tune only "
                 "rates. Default: 0.9,0.95,0.98,0.99; for methods whose beta2 averages squares "
                 "0.95,0.98,0.99,0.999")
      ->delimiter(',');
  add_value(app, "--tune-seed", o.tune_seed, "Seed of the tuning runs; must not be one of --seeds");
  CLI::Option* epochs =
      app.add_option("--tune-epochs", o.tune_epochs,
                     "Length of the tuning runs in epochs. Default: that of the other runs");
  add_value(app, "--tune-steps", o.tune_steps, "The same in steps", {1})->excludes(epochs);
}

// The flags of `pride train` that were given on the command line or in --config.
FlagValues given_train_flags(CLI::App& app, const CompareOptions& options) {
  if (!options.train.config.empty()) apply_config(app, options.train.config);
  FlagValues given;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty() || option->count() == 0) continue;
    const std::string& name = option->get_lnames().front();
    const bool own = option->get_group() == kGroup || name == "config" || name == "help";
    if (!own) given[name] = option->results();
  }
  return given;
}

// Values of --method-opt: the shared ones, except overridden keys, and these.
std::vector<std::string> merged(const std::vector<std::string>& shared,
                                const std::vector<std::string>& own) {
  const auto key = [](const std::string& text) { return text.substr(0, text.find('=')); };
  std::vector<std::string> all;
  for (const std::string& text : shared) {
    const auto same_key = [&](const std::string& other) { return key(other) == key(text); };
    if (std::ranges::none_of(own, same_key)) all.push_back(text);
  }
  all.insert(all.end(), own.begin(), own.end());
  return all;
}

// LABEL=METHOD, or METHOD
void add_method(const std::string& text, Experiment& experiment) {
  const std::size_t equals = text.find('=');
  const std::string label = text.substr(0, equals);
  const std::string method = equals == std::string::npos ? text : text.substr(equals + 1);
  check_label("--methods: label", label);
  method_info(method, 1);
  PRIDE_CHECK(experiment.own.emplace(label, OwnSettings{.method = method}).second, "--methods: '",
              label, "' is given twice");
  experiment.grids.front().labels.push_back(label);
}

// LABEL:FLAG=VALUE or FLAG=VALUE of --set, as `form` says.
struct SetFlag {
  std::string label, value;
  const Flag* flag = nullptr;
};

SetFlag parse_set(const std::string& text, const std::string& form) {
  const std::size_t colon = form.find(':') != std::string::npos ? text.find(':') : 0;
  const std::size_t begin = colon + (colon > 0 ? 1 : 0), equals = text.find('=', colon);
  PRIDE_CHECK(colon != std::string::npos && equals != std::string::npos && equals > begin &&
                  equals + 1 < text.size(),
              "--set ", text, ": must be ", form);
  SetFlag set{.label = text.substr(0, colon), .value = text.substr(equals + 1)};
  const std::string name = text.substr(begin, equals - begin);
  set.flag = flag_of(name, set.value);
  PRIDE_CHECK(set.flag != nullptr, "--set ", text, ": '", name, "' is not a flag of `pride train`");
  return set;
}

void apply_set(const std::string& text, Experiment& experiment) {
  const SetFlag set = parse_set(text, "METHOD:FLAG=VALUE");
  const auto own = experiment.own.find(set.label);
  PRIDE_CHECK(own != experiment.own.end(), "--set ", text, ": '", set.label,
              "' is not in --methods");
  const std::string& flag = set.flag->name;
  PRIDE_CHECK(!is_shared(*set.flag), "--set ", text, ": --", flag,
              " is the same for all methods of a comparison");
  if (flag == kMethodOption) return own->second.options.push_back(set.value);
  PRIDE_CHECK(std::ranges::count(own->second.axes, flag, &Axis::flag) == 0, "--set ", text, ": --",
              flag, " is set twice");
  own->second.axes.push_back({flag, {set.value}});
}

const std::vector<std::string> kNone = {"none"};

// "none" alone, or numbers of [0, 1), ascending.
void check_beta2(const std::vector<std::string>& values) {
  if (values == kNone) return;
  for (const std::string& value : values) {
    const double beta2 = number_of(value).value_or(-1);
    PRIDE_CHECK(beta2 >= 0 && beta2 < 1, "--tune-beta2 ", value,
                ": must be a number from 0 to below 1, or none alone");
  }
  const std::string* wrong = out_of_order(values);
  PRIDE_CHECK(wrong == nullptr, "--tune-beta2 ", *wrong, ": values must ascend");
}

void add_search(const CompareOptions& o, Experiment& experiment) {
  PRIDE_CHECK(o.tune || (!o.tune_epochs && !o.tune_steps && o.tune_beta2.empty()),
              "--tune-epochs, --tune-steps and --tune-beta2 need --tune");
  if (!o.tune) return;
  check_beta2(o.tune_beta2);
  Tuning tuning{.seed = o.tune_seed, .climb = true};
  if (o.tune_epochs) tuning.flags["epochs"] = {concat(*o.tune_epochs)};
  if (o.tune_steps) tuning.flags["steps"] = {concat(*o.tune_steps)};
  for (auto& [label, own] : experiment.own) {
    const MethodInfo info = method_info(own.method, 1);
    own.tune.push_back({"lr", {}});  // no values: the search starts at the rate of a run
    std::vector<std::string> values = o.tune_beta2;
    if (values.empty()) values = info.default_eps > 0 ? kBeta2OfSquares : kBeta2;
    if (info.default_beta2 == 0 || values == kNone) continue;
    const bool given = experiment.shared.contains("beta2") ||
                       std::ranges::count(own.axes, "beta2", &Axis::flag) > 0;
    PRIDE_CHECK(!given, label,
                ": --beta2 and --tune, which chooses it: give --tune-beta2 none, or "
                "the values to choose from");
    own.tune.push_back({"beta2", std::move(values)});
  }
  experiment.tune = std::move(tuning);
}

void add_sweep_flags(CLI::App& app, SweepOptions& o) {
  app.add_option("file", o.file, "The experiment, a TOML file; see experiments/")->required();
  app.add_option("--data", o.data, "The data, instead of the file's");
  app.add_option("--set", o.set,
                 "FLAG=VALUE: a flag of `pride train` for all runs, including [tune], instead of "
                 "the file's, e.g. device=cuda; may be repeated")
      ->allow_extra_args(false);
  add_common_flags(app, o,
                   "Folder for the runs, sweep.jsonl and sweep.json. Complete runs in it are not "
                   "repeated. Default: runs/NAME, after the file's name");
}

// Flags of `pride train` that a comparison does not set itself, and its own.
void add_compare_flags(CLI::App& app, CompareOptions& o) {
  app.option_defaults()->group(kGroup);
  add_what_to_compare(app, o);
  add_tuning(app, o);
  add_train_flags(app, o.train);
  for (const Flag& flag : Flag::table()) {
    if (flag.rules.by_experiment && flag.name != "config")
      app.remove_option(app.get_option("--" + flag.name));
  }
  add_common_flags(
      app, o,
      "Folder for the runs, sweep.jsonl and sweep.json. Complete runs in it are not repeated");
}

// --set and --data as flags of `pride train`. Throws InvalidArgument.
FlagValues flags_instead(const SweepOptions& options) {
  FlagValues flags;
  for (const std::string& text : options.set) {
    const SetFlag set = parse_set(text, "FLAG=VALUE");
    PRIDE_CHECK(!set.flag->rules.by_experiment, "--set ", text, ": '", set.flag->name,
                "' is not a flag of `pride train` that all runs of a sweep can share");
    flags[set.flag->name].push_back(set.value);
  }
  if (!options.data.empty()) flags["data"] = {options.data};
  return flags;
}

// Every method on every seed: one grid, and with --tune a climb over rates and beta2; --config is
// applied. Throws InvalidArgument.
Experiment comparison_of(CLI::App& app, CompareOptions& options) {
  Experiment experiment{.where = "pride compare", .name = "compare", .all_or_none = true};
  experiment.shared = given_train_flags(app, options);
  if (options.methods.empty()) throw CLI::RequiredError("--methods");
  if (options.out.empty()) throw CLI::RequiredError("--out");
  Grid& grid = experiment.grids.emplace_back();
  for (const std::uint64_t seed : options.seeds) {
    PRIDE_CHECK(std::ranges::count(grid.seeds, seed) == 0, "--seeds: ", seed, " is given twice");
    PRIDE_CHECK(!options.tune || seed != options.tune_seed, "--tune-seed ", seed,
                ": is one of --seeds; tune on a seed that is not in the results");
    grid.seeds.push_back(seed);
  }
  for (const std::string& text : options.methods) {
    if (text != "all") {
      add_method(text, experiment);
    } else {
      for (const std::string& name : method_names()) add_method(name, experiment);
    }
  }
  for (const std::string& text : options.set) apply_set(text, experiment);
  const auto shared = experiment.shared.find(kMethodOption);
  for (auto& [label, own] : experiment.own) {
    if (shared != experiment.shared.end()) own.options = merged(shared->second, own.options);
  }
  add_search(options, experiment);
  return experiment;
}

// Reports failed runs. Returns the exit code.
int tell_failures(const Runs& runs) {
  int failed = 0, killed = 0;
  for (const Entry& entry : runs.entries) {
    if (entry.state != Entry::State::kFailed) continue;
    failed += entry.run.tuning ? 0 : 1;
    killed += was_killed(entry.result) ? 1 : 0;
  }
  if (failed == 0) return 0;
  std::cerr << "pride: error: " << failed << (failed == 1 ? " run" : " runs")
            << " failed; --retry repeats them";
  if (killed > 0) {
    std::cerr << "; without it the same command repeats only runs ended by a signal (" << killed
              << ")";
  }
  std::cerr << '\n';
  return 1;
}

// Refuses a folder with records of another experiment, because all its records are rewritten.
void check_folder(const ExperimentPlan& plan) {
  const fs::path file = plan.out / "sweep.json";
  if (!fs::exists(file)) return;
  const nlohmann::json earlier = read_json(file);
  const auto name = earlier.find("experiment");
  const std::string had = name == earlier.end() ? ""
                          : name->is_string()   ? name->get<std::string>()
                                                : name->dump();
  PRIDE_CHECK(had.empty() || had == plan.experiment.name, file.string(), ": holds the records of '",
              had, "'; choose another --out");
}

// Runs the experiment. Returns the exit code.
int make(const ExperimentPlan& plan, const ExperimentOptions& options) {
  check_folder(plan);
  std::error_code error;
  fs::create_directories(plan.out, error);
  if (error) throw DataError(concat("--out ", plan.out.string(), ": ", error.message()));
  const FolderLock lock(plan.out, "sweep");
  catch_interrupts();
  const Runs runs = make_runs(plan, options.runner, interrupted);
  if (options.json) {
    std::cout << overview_of(plan, runs).dump(2) << std::endl;
  } else {
    std::cout << experiment_table(runs) << std::flush;
  }
  for (const std::string& text : unequal_starts(runs.entries)) {
    std::cerr << "pride: warning: " << text << '\n';
  }
  if (!runs.complete) {
    std::cerr << "pride: interrupted; the same command runs what is missing\n";
    return kInterrupted;
  }
  return tell_failures(runs);
}

void run_experiments(const char* command, Experiment experiment, const FlagValues& given,
                     const ExperimentOptions& options) {
  PRIDE_CHECK(
      !launched_as_job(), command,
      " starts its own runs, with threads as workers: run it without mpirun, srun or torchrun");
  check_utf8("--out", options.out);
  const fs::path out =
      options.out.empty() ? fs::path("runs") / experiment.name : fs::path(options.out);
  const ExperimentPlan plan(std::move(experiment), given, out);
  if (options.list) {
    std::cout << list_of_runs(plan, known_runs(plan, options.runner));
    return;
  }
  const int code = make(plan, options);
  if (code != 0) std::exit(code);
}

}  // namespace

void add_sweep(CLI::App& command) {
  const auto options = std::make_shared<SweepOptions>();
  add_sweep_flags(command, *options);
  command.callback([options] {
    const FlagValues given = flags_instead(*options);
    run_experiments("pride sweep", read_experiment(options->file), given, *options);
  });
}

void add_compare(CLI::App& command) {
  const auto options = std::make_shared<CompareOptions>();
  add_compare_flags(command, *options);
  command.callback([&command, options] {
    run_experiments("pride compare", comparison_of(command, *options), {}, *options);
  });
}

}  // namespace pride::app
