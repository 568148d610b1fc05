// `pride sweep` and `pride compare`: the runs of an experiment, from a file or from flags.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>

#include "commands.h"
#include "experiments/options.h"
#include "experiments/records.h"
#include "pride/error.h"
#include "pride/train/trainer.h"
#include "train/files.h"
#include "train/io/folder_lock.h"
#include "train/process.h"
#include "train/text/utf8.h"
#include "world.h"

namespace pride::app {
namespace {

namespace fs = std::filesystem;

constexpr int kFailed = 1;
constexpr int kInterrupted = 130;  // 128 + SIGINT, as shells say it

int count_if(const Runner& runner, bool (*test)(const Entry&)) {
  return static_cast<int>(std::ranges::count_if(runner.entries(), test));
}

// What is said of failed runs. The exit code.
int tell_failures(const Runner& runner) {
  const int failed = count_if(
      runner, [](const Entry& e) { return e.state == Entry::State::kFailed && !e.run.tuning; });
  const int killed = count_if(runner, [](const Entry& e) {
    return e.state == Entry::State::kFailed && was_killed(e.result);
  });
  if (failed == 0) return 0;
  std::cerr << "pride: error: " << failed << (failed == 1 ? " run" : " runs")
            << " failed; --retry makes them again";
  if (killed > 0) {
    std::cerr << "; without it the same command makes again what a signal ended (" << killed << ")";
  }
  std::cerr << '\n';
  return kFailed;
}

// The records of a folder are rewritten whole: they are of one experiment.
void check_folder(const ExperimentPlan& plan) {
  PRIDE_CHECK(!fs::exists(plan.out() / "compare.json"), plan.out().string(),
              ": holds a comparison of an earlier version; choose another --out");
  const fs::path file = plan.out() / "sweep.json";
  if (!fs::exists(file)) return;
  const nlohmann::json earlier = read_json(file);
  const auto name = earlier.find("experiment");
  const std::string had = name == earlier.end() ? ""
                          : name->is_string()   ? name->get<std::string>()
                                                : name->dump();
  PRIDE_CHECK(had.empty() || had == plan.experiment().name, file.string(),
              ": holds the records of '", had, "'; choose another --out");
}

// The exit code.
int make_runs(const ExperimentPlan& plan, const ExperimentOptions& options) {
  check_folder(plan);
  std::error_code error;
  fs::create_directories(plan.out(), error);
  if (error) throw DataError(concat("--out ", plan.out().string(), ": ", error.message()));
  const FolderLock lock(plan.out(), "sweep");
  catch_interrupts();
  Runner runner(plan, options.runner, interrupted);
  const bool complete = runner.run();
  if (options.json) {
    std::cout << overview_of(plan, runner.entries(), runner.choices(), complete).dump(2)
              << std::endl;
  } else {
    std::cout << experiment_table(runner.entries(), runner.choices()) << std::flush;
  }
  for (const std::string& text : unequal_starts(runner.entries())) {
    std::cerr << "pride: warning: " << text << '\n';
  }
  if (!complete) {
    std::cerr << "pride: interrupted; the same command makes the runs that are missing\n";
    return kInterrupted;
  }
  return tell_failures(runner);
}

void run(const char* command, Experiment experiment, const FlagValues& given,
         const ExperimentOptions& options) {
  PRIDE_CHECK(!launched_as_job(), command,
              " makes its runs itself, with threads as workers: run it without mpirun, srun or "
              "torchrun");
  check_utf8("--out", options.out);
  const fs::path out =
      options.out.empty() ? fs::path("runs") / experiment.name : fs::path(options.out);
  const ExperimentPlan plan(std::move(experiment), given, out);
  if (options.list) {
    const Runner known(plan, options.runner, interrupted);
    std::cout << list_of_runs(plan, known.entries(), known.choices());
    return;
  }
  const int code = make_runs(plan, options);
  if (code != 0) std::exit(code);
}

}  // namespace

void add_sweep(CLI::App& command) {
  const auto options = std::make_shared<SweepOptions>();
  add_sweep_flags(command, *options);
  command.callback([options] {
    const FlagValues given = flags_instead(*options);
    run("pride sweep", read_experiment(options->file), given, *options);
  });
}

void add_compare(CLI::App& command) {
  const auto options = std::make_shared<CompareOptions>();
  add_compare_flags(command, *options);
  command.callback([&command, options] {
    run("pride compare", comparison_of(command, *options), {}, *options);
  });
}

}  // namespace pride::app
