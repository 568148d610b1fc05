// thread_comm: N ranks as threads of one process. The embedded default, and what most tests use.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "pride/communicator.h"

namespace pride {

// Makes a world of `size` ranks in this process and returns the communicator of each rank.
// REQUIRES: 1 <= size <= 1024. The receiver copies each message once, from the sender's buffer.
std::vector<std::unique_ptr<Communicator>> make_thread_world(int size);

// Runs `body` on `size` threads, each with its own rank's communicator, and joins them. An
// exception on one rank fails the world, so the others' waits end. Rethrows one exception; a rank's
// own error comes before the CommErrors that it caused on others.
void run_world(int size, const std::function<void(Communicator&)>& body);

}  // namespace pride
