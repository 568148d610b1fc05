// `pride train` in a build without libtorch: it exists, and says what is missing.
// SPDX-License-Identifier: Apache-2.0
#include "commands.h"
#include "pride/error.h"

namespace pride::app {

void add_train_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("train", "Train a model (not in this build: it has no libtorch)");
  command->allow_extras();
  command->callback([] {
    throw Error(
        "this build of pride has no libtorch, which `pride train` needs: install libtorch "
        "(Debian: libtorch-dev) and configure with -DPRIDE_WITH_TORCH=ON");
  });
}

}  // namespace pride::app
