// Makes one run: a `pride train` in a process of its own, its folder read afterwards.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "compare/result.h"

namespace pride::app {

// Replaces what the run's folder holds. Nothing if the run was stopped before its end: because
// stop_asked() became true, or by a signal of its own. A run that fails is a result with an error.
// May be called by several threads at once, for different folders. Throws DataError if the folder
// cannot be made.
std::optional<RunResult> make_run(const Run& run, bool (*stop_asked)() noexcept);

}  // namespace pride::app
