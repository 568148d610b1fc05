// `pride compare`: several methods on the same task, seeds and batches, one table at the end.
// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>

#include "commands.h"
#include "compare/comparison.h"
#include "compare/options.h"
#include "compare/plan.h"
#include "compare/report.h"
#include "pride/error.h"
#include "train/process.h"
#include "world.h"

namespace pride::app {
namespace {

constexpr int kFailed = 1;
constexpr int kInterrupted = 130;  // 128 + SIGINT, as shells say it

constexpr const char* kAbout =
    "Train by several methods and compare: the same task and, for each seed, the same initial "
    "values and batches. Every run is a `pride train` of its own, with threads as workers; its "
    "flags may be given here, for all methods.";

void check_alone() {
  PRIDE_CHECK(
      !launched_as_job(),
      "pride compare makes its runs itself, with threads as workers: run it without mpirun, "
      "srun or torchrun");
}

int failed_runs(const Comparison& comparison) {
  int failed = 0;
  for (const Entry& entry : comparison.entries()) {
    for (const RunResult& result : entry.runs) failed += result.ok() ? 0 : 1;
  }
  return failed;
}

// The exit code.
int compare(const CompareOptions& options, const FlagValues& given) {
  check_alone();
  const ComparePlan plan(options, given);
  std::error_code error;
  std::filesystem::create_directories(options.out, error);
  if (error) throw DataError(concat("--out ", options.out, ": ", error.message()));
  catch_interrupts();
  Comparison comparison(plan, interrupted);
  const bool complete = comparison.run();
  if (options.json) {
    std::cout << report_json(plan, comparison.entries(), complete).dump(2) << std::endl;
  } else {
    std::cout << report_table(plan, comparison.entries()) << std::flush;
  }
  for (const std::string& text : unequal_starts(comparison.entries())) {
    std::cerr << "pride: warning: " << text << '\n';
  }
  if (!complete) {
    std::cerr << "pride: interrupted; the same command makes the runs that are missing\n";
    return kInterrupted;
  }
  const int failed = failed_runs(comparison);
  if (failed > 0) {
    std::cerr << "pride: error: " << failed << (failed == 1 ? " run" : " runs") << " failed\n";
  }
  return failed > 0 ? kFailed : 0;
}

}  // namespace

void add_compare_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("compare", kAbout);
  const auto options = std::make_shared<CompareOptions>();
  add_compare_flags(*command, *options);
  command->callback([command, options] {
    const FlagValues given = given_train_flags(*command, *options);
    if (options->methods.empty()) throw CLI::RequiredError("--methods");
    if (options->out.empty()) throw CLI::RequiredError("--out");
    const int code = compare(*options, given);
    if (code != 0) std::exit(code);
  });
}

}  // namespace pride::app
