// `pride sweep`: makes the runs of an experiment file that are missing.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>

#include "commands.h"
#include "pride/error.h"
#include "sweep/lock.h"
#include "sweep/options.h"
#include "sweep/plan.h"
#include "sweep/records.h"
#include "sweep/sweep.h"
#include "train/process.h"
#if PRIDE_HAVE_MPI
#include "pride/comm/mpi_comm.h"
#endif

namespace pride::app {
namespace {

constexpr int kFailed = 1;
constexpr int kInterrupted = 130;  // 128 + SIGINT, as shells say it

constexpr const char* kAbout =
    "Make the runs of an experiment file: methods x workers x seeds x whatever else it varies. "
    "Every run is a `pride train` of its own, with threads as workers. The same command goes on "
    "where it was interrupted, and makes only what is missing or changed.";

void check_alone() {
#if PRIDE_HAVE_MPI
  PRIDE_CHECK(!launched_by_mpi(),
              "pride sweep makes its runs itself, with threads as workers: run it without mpirun "
              "or srun");
#endif
}

int failed_runs(const Sweep& sweep) {
  return static_cast<int>(
      std::ranges::count(sweep.entries(), SweepEntry::State::kFailed, &SweepEntry::state));
}

int killed_runs(const Sweep& sweep) {
  return static_cast<int>(std::ranges::count_if(sweep.entries(), [](const SweepEntry& entry) {
    return entry.state == SweepEntry::State::kFailed && was_killed(entry.result);
  }));
}

// The exit code.
int make_runs(const SweepPlan& plan) {
  PRIDE_CHECK(!std::filesystem::exists(plan.out() / "compare.json"), plan.out().string(),
              ": holds a comparison; choose another --out");
  std::error_code error;
  std::filesystem::create_directories(plan.out(), error);
  if (error) throw DataError(concat(plan.out().string(), ": ", error.message()));
  const FolderLock lock(plan.out());
  catch_interrupts();
  Sweep sweep(plan, interrupted);
  const bool complete = sweep.run();
  std::cout << sweep_table(sweep.entries(), sweep.choices()) << std::flush;
  if (!complete) {
    std::cerr << "pride: interrupted; the same command makes the runs that are missing\n";
    return kInterrupted;
  }
  const int failed = failed_runs(sweep);
  if (failed > 0) {
    std::cerr << "pride: error: " << failed << (failed == 1 ? " run" : " runs")
              << " failed; --retry makes them again";
    const int killed = killed_runs(sweep);
    if (killed > 0) {
      std::cerr << "; without it the same command makes again what a signal ended (" << killed
                << ")";
    }
    std::cerr << '\n';
  }
  return failed > 0 ? kFailed : 0;
}

int sweep(const SweepOptions& options) {
  check_alone();
  const SweepPlan plan(options);
  if (!options.list) return make_runs(plan);
  const Sweep known(plan, interrupted);
  std::cout << sweep_list(plan, known.entries(), known.choices());
  return 0;
}

}  // namespace

void add_sweep_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("sweep", kAbout);
  const auto options = std::make_shared<SweepOptions>();
  add_sweep_flags(*command, *options);
  command->callback([options] {
    const int code = sweep(*options);
    if (code != 0) std::exit(code);
  });
}

}  // namespace pride::app
