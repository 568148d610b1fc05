// run_ends: a thread for each end of a world, and their exceptions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "pride/communicator.h"

namespace pride {

// Runs `body` on a thread for each of `ends` and joins them. A rank that throws fails the world.
// Rethrows a rank's own error; else the CommError of the rank that failed first by failed_rank()
// (-1: unknown); else any.
void run_ends(std::vector<std::unique_ptr<Communicator>> ends,
              const std::function<void(Communicator&)>& body,
              const std::function<int()>& failed_rank);

}  // namespace pride
