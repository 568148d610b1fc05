// run_ends: a thread for each end of a world, and what they threw.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "pride/communicator.h"

namespace pride {

// Runs `body` on a thread for each of `ends` and joins them. A rank that throws fails the world.
// Rethrows what a rank threw of its own; else the CommError of the rank that failed_rank() says
// failed first (-1: not known); else any.
void run_ends(std::vector<std::unique_ptr<Communicator>> ends,
              const std::function<void(Communicator&)>& body,
              const std::function<int()>& failed_rank);

}  // namespace pride
