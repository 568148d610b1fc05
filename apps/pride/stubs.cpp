// Commands that this program has not: it lists them in its help, and says what they need. Without
// libtorch these are the ones that train; the program `pride` of a build with libtorch becomes
// pride-torch for all of these before it comes here.
// SPDX-License-Identifier: Apache-2.0
#include "commands.h"
#include "pride/error.h"

namespace pride::app {
namespace {

void add_missing(CLI::App& app, const std::string& name, const char* about) {
#if PRIDE_LISTS_ONLY
  app.add_subcommand(name, about);
#else
  const std::string lacks = " (not in this build: it has no libtorch)";
  CLI::App* command = app.add_subcommand(name, about + lacks);
  command->allow_extras();
  command->callback([name] {
    throw Error(concat("this build of pride has no libtorch, which `pride ", name,
                       "` needs: install libtorch (Debian: libtorch-dev) and configure with "
                       "-DPRIDE_WITH_TORCH=ON"));
  });
#endif
}

}  // namespace

void add_train_command(CLI::App& app) { add_missing(app, "train", kTrainAbout); }
void add_compare_command(CLI::App& app) { add_missing(app, "compare", kCompareAbout); }
void add_sweep_command(CLI::App& app) { add_missing(app, "sweep", kSweepAbout); }
void add_generate_command(CLI::App& app) { add_missing(app, "generate", kGenerateAbout); }
void add_evaluate_command(CLI::App& app) { add_missing(app, "evaluate", kEvaluateAbout); }
#if PRIDE_LISTS_ONLY
void add_replay_command(CLI::App& app) { add_missing(app, "replay", kReplayAbout); }
void add_bench_command(CLI::App& app) { add_missing(app, "bench", kBenchAbout); }
void add_info_command(CLI::App& app) { add_missing(app, "info", kInfoAbout); }
#endif

}  // namespace pride::app
