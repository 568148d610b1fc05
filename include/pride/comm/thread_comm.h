// thread_comm: N ranks as threads of one process. The embedded default, and what most tests use.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "pride/communicator.h"

namespace pride {

// The N ends of a world whose ranks live in this process. REQUIRES: 1 <= size <= 1024.
// A send is copied once, by the receiver, straight from the sender's buffer.
std::vector<std::unique_ptr<Communicator>> make_thread_world(int size);

// Runs `body` on `size` threads, each with its own rank's communicator, and joins them. An
// exception on one rank releases the others; the first one thrown is rethrown here (a rank's own
// error in preference to the CommErrors it caused on others).
void run_world(int size, const std::function<void(Communicator&)>& body);

}  // namespace pride
