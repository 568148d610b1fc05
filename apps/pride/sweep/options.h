// What `pride sweep` was asked to do, and the flags that say it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

#include "compare/options.h"

namespace pride::app {

struct SweepOptions {
  std::string file, out;         // empty: runs/NAME
  std::vector<std::string> set;  // FLAG=VALUE
  std::string data;
  int jobs = 0;  // 0: as many as the cores hold workers
  bool list = false, retry = false, quiet = false;
};

void add_sweep_flags(CLI::App& app, SweepOptions& options);

// --set and --data as flags of `pride train`. Throws InvalidArgument.
FlagValues flags_instead(const SweepOptions& options);

}  // namespace pride::app
