// `pride train`, `compare`, `sweep`, `generate` and `evaluate` without libtorch: they exist, and
// say what is missing.
// SPDX-License-Identifier: Apache-2.0
#include "commands.h"
#include "pride/error.h"

namespace pride::app {
namespace {

void add_missing(CLI::App& app, const std::string& name, const std::string& what) {
  CLI::App* command = app.add_subcommand(name, what + " (not in this build: it has no libtorch)");
  command->allow_extras();
  command->callback([name] {
    throw Error(concat("this build of pride has no libtorch, which `pride ", name,
                       "` needs: install libtorch (Debian: libtorch-dev) and configure with "
                       "-DPRIDE_WITH_TORCH=ON"));
  });
}

}  // namespace

void add_train_command(CLI::App& app) { add_missing(app, "train", "Train a model"); }
void add_compare_command(CLI::App& app) { add_missing(app, "compare", "Compare methods"); }
void add_generate_command(CLI::App& app) {
  add_missing(app, "generate", "Let a trained language model write");
}
void add_evaluate_command(CLI::App& app) {
  add_missing(app, "evaluate", "Ask a language model questions with choices");
}
void add_sweep_command(CLI::App& app) { add_missing(app, "sweep", "Run an experiment file"); }

}  // namespace pride::app
