// Who the ranks of a command are: the processes of an MPI job, or threads of this process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>

#include "pride/communicator.h"

namespace pride::app {

// On each rank. `threads_may_talk`: several threads of a rank may communicate at a time.
using RankBody = std::function<void(Communicator& comm, bool threads_may_talk)>;

// Runs `body` on the ranks of the MPI job that this process belongs to, or else on `workers`
// threads (0: kDefaultWorkers). One process that an MPI launcher started alone runs threads, if
// `workers` is given. Throws what a thread threw; under MPI an error ends the process.
// Throws InvalidArgument where `workers` is given and is not the size of the job.
void run_ranks(int workers, const RankBody& body);

// Ranks whose machine has the same name as this rank's, itself among them. Collective.
int ranks_on_this_host(Communicator& comm);

inline constexpr int kDefaultWorkers = 4;

// Ends this process and, through the launcher, the job. One rank speaks for an error that all have.
[[noreturn]] void leave_job(Communicator& comm, const std::exception& error);

}  // namespace pride::app
