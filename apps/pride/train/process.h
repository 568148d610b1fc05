// What a training process sets for itself: one thread per worker in the maths libraries, and a flag
// for Ctrl-C.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace pride::app {

// Pins torch, OpenMP and BLAS to one thread each: workers are the parallelism, and sums then have
// one order. Call before any tensor exists, and again on each worker's thread (torch keeps a
// setting per thread).
void pin_threads();

// How many threads each library says it uses: {"torch": 1, "torch_interop": 1, "openblas": 1}.
nlohmann::json thread_facts();

// From now on SIGINT and SIGTERM ask the run to stop after its step; a second one ends the process.
// One that was ignored when the process began stays ignored.
void catch_interrupts();
bool interrupted() noexcept;

}  // namespace pride::app
