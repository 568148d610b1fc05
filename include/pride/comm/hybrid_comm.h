// hybrid_comm: ranks are threads of the processes of an MPI job. Messages within a process go
// through memory, those between processes through MPI.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <functional>
#include <memory>
#include <vector>

#include "pride/communicator.h"

namespace pride {

// Makes a world with `threads` ranks on each process of `comm`. Returns the communicators of this
// process's ranks, which begin at process * threads. Collective over `comm`, which stays the
// caller's. Throws InvalidArgument, on all processes, unless MPI grants MPI_THREAD_MULTIPLE,
// `threads` is the same everywhere and the world has at most 1024 ranks.
std::vector<std::unique_ptr<Communicator>> make_hybrid_world(int threads,
                                                             MPI_Comm comm = MPI_COMM_WORLD);

// Runs `body` on `threads` threads of this process, each with its own rank's communicator, and
// joins them. An exception on one rank fails the world, so waits end on all processes. Rethrows one
// exception of this process's ranks; a rank's own error comes before the CommErrors that it caused.
// Collective, as above.
void run_hybrid_world(int threads, const std::function<void(Communicator&)>& body,
                      MPI_Comm comm = MPI_COMM_WORLD);

}  // namespace pride
