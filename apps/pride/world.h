// Who the ranks of a command are: the processes of an MPI job, or threads of this process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>

#include "pride/communicator.h"

namespace pride::app {

// On each rank. `threads_may_talk`: several threads of a rank may communicate at a time.
using RankBody = std::function<void(Communicator& comm, bool threads_may_talk)>;

// How many ranks there are: as the flags say it, 0 where they do not.
struct Workers {
  int total = 0;        // --workers
  int per_process = 0;  // --threads-per-process, under MPI only: threads in each process
};

inline constexpr const char* kThreadsPerProcessHelp =
    "Under mpirun: workers in each process, threads of it. Default: every process is one";

// Runs `body` on the ranks of the MPI job that this process belongs to, or else on `workers.total`
// threads (0: kDefaultWorkers). One process that an MPI launcher started alone runs threads, if
// `workers.total` is given. Throws what a thread threw; under MPI an error ends the process.
// Throws InvalidArgument where `workers.total` is given and is not the number of ranks of the job,
// and where `workers.per_process` is given and this is no MPI job.
void run_ranks(const Workers& workers, const RankBody& body);

// Throws InvalidArgument if --workers is given and says otherwise than the MPI job.
void check_workers(const Workers& workers, const Communicator& comm);

// Ranks whose machine has the same name as this rank's, itself among them. Collective.
int ranks_on_this_host(Communicator& comm);

inline constexpr int kDefaultWorkers = 4;

// Ends this process and, through the launcher, the job. One rank speaks for an error that all have.
[[noreturn]] void leave_job(Communicator& comm, const std::exception& error);

// The same of a rank whose communicator is gone, after it has failed.
[[noreturn]] void leave_job(int rank, const std::exception& error);

}  // namespace pride::app
