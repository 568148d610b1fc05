// SPDX-License-Identifier: Apache-2.0
#include "sweep/options.h"

#include "integer_check.h"
#include "pride/error.h"
#include "sweep/experiment.h"

namespace pride::app {
namespace {

constexpr int kMostJobs = 1024;

}  // namespace

void add_sweep_flags(CLI::App& app, SweepOptions& o) {
  app.add_option("file", o.file, "The experiment, a TOML file; see experiments/")->required();
  app.add_option("--out", o.out,
                 "Folder for the runs, sweep.jsonl and sweep.json. Complete runs in it are not "
                 "repeated. Default: runs/NAME, after the file's name");
  app.add_option("--data", o.data, "The data, instead of what the file says");
  app.add_option("--set", o.set,
                 "FLAG=VALUE: a flag of `pride train` for all runs, those of [tune] too, instead "
                 "of what the file says, e.g. device=cuda; may be repeated")
      ->allow_extra_args(false);
  app.add_option("--jobs", o.jobs,
                 "Runs at a time. Default: as many as there are cores for their workers, at least "
                 "one")
      ->check(integer_check<int>(1, kMostJobs));
  app.add_flag("--list", o.list, "Print the runs and what is known of them; make none");
  app.add_flag("--retry", o.retry, "Make runs again that failed");
  app.add_flag("--quiet", o.quiet, "No progress on standard error");
}

FlagValues flags_instead(const SweepOptions& options) {
  FlagValues flags;
  for (const std::string& text : options.set) {
    const std::size_t equals = text.find('=');
    PRIDE_CHECK(equals != std::string::npos && equals > 0 && equals + 1 < text.size(), "--set ",
                text, ": must be FLAG=VALUE");
    const std::string flag = text.substr(0, equals);
    PRIDE_CHECK(flags_of_runs().contains(flag), "--set ", text, ": '", flag,
                "' is no flag of `pride train` that all runs of a sweep can have");
    flags[flag].push_back(text.substr(equals + 1));
  }
  if (!options.data.empty()) flags["data"] = {options.data};
  return flags;
}

}  // namespace pride::app
