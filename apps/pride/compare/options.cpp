// The flags of `pride compare`.
// SPDX-License-Identifier: Apache-2.0
#include "compare/options.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include "integer_check.h"

namespace pride::app {
namespace {

const char* const kGroup = "Comparison";

// flags of `pride train` that the comparison sets for each run, or that mean another thing here, or
// nothing: a run begins anew, so that checkpoints would only fill the disk, and is no job
constexpr const char* kTaken[] = {
    "--method", "--seed", "--out",        "--overwrite",   "--resume",
    "--quiet",  "--json", "--save-every", "--tensorboard", "--threads-per-process"};

void add_what_to_compare(CLI::App& app, CompareOptions& o) {
  app.add_option("--methods", o.methods,
                 "Methods to compare, separated by commas, or all. LABEL=METHOD names an entry, so "
                 "that one method can take part with several settings")
      ->delimiter(',')
      ->group(kGroup);
  app.add_option("--seeds", o.seeds,
                 "Each method is trained on each of these, separated by commas. Runs of one seed "
                 "have the same initial values and see the same batches, whatever their method")
      ->delimiter(',')
      ->check(integer_check<std::uint64_t>(0))
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--set", o.set,
                 "A flag of `pride train` for one method only, as METHOD:FLAG=VALUE, e.g. "
                 "dgc:lr=0.1 or dgc:method-opt=ratio=0.01; may be repeated. Replaces the value "
                 "that all have; of --method-opt, the one of the same key")
      ->allow_extra_args(false)
      ->group(kGroup);
}

void add_tuning(CLI::App& app, CompareOptions& o) {
  app.add_flag("--tune", o.tune,
               "Choose each method's learning rate first, by one rule: from the grid 1, 3, 10, ... "
               "by the final loss on --tune-seed, beginning next to the method's default (or --lr) "
               "and going on until neither neighbour of the best rate is better")
      ->group(kGroup);
  app.add_option("--tune-seed", o.tune_seed, "Seed of the tuning runs; none of --seeds")
      ->check(integer_check<std::uint64_t>(0))
      ->capture_default_str()
      ->group(kGroup);
  CLI::Option* epochs =
      app.add_option("--tune-epochs", o.tune_epochs,
                     "Length of the tuning runs in epochs. Default: the length of the others")
          ->group(kGroup);
  app.add_option("--tune-steps", o.tune_steps, "The same in steps")
      ->excludes(epochs)
      ->check(integer_check<std::int64_t>(1))
      ->group(kGroup);
}

void add_results(CLI::App& app, CompareOptions& o) {
  app.add_option("--out", o.out,
                 "Folder for the runs, METHOD/LR-seedSEED/, and compare.json. Complete runs in it "
                 "are not repeated: the same command goes on where it was interrupted")
      ->group(kGroup);
  app.add_flag("--overwrite", o.overwrite, "Replace runs in --out that had other settings")
      ->group(kGroup);
  app.add_flag("--quiet", o.quiet, "No progress on standard error")->group(kGroup);
  app.add_flag("--json", o.json, "Print compare.json instead of the table")->group(kGroup);
}

}  // namespace

void add_compare_flags(CLI::App& app, CompareOptions& options) {
  add_what_to_compare(app, options);
  add_tuning(app, options);
  add_train_flags(app, options.train);
  for (const char* name : kTaken) app.remove_option(app.get_option(name));
  add_results(app, options);
}

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

}  // namespace pride::app
