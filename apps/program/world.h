// The ranks of a command: the processes of a job (MPI, torchrun), or threads of this process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "pride/communicator.h"
#include "pride/device.h"

namespace CLI {
class App;
}

namespace pride::inline program {

// Called on each rank. `threads_may_talk`: several threads of a rank may communicate at a time.
using RankBody = std::function<void(Communicator& comm, bool threads_may_talk)>;

// The number of ranks by the flags; 0: not given.
struct Workers {
  int total = 0;                                                  // --workers
  std::chrono::milliseconds timeout = std::chrono::seconds(300);  // longest wait for another rank
};

// A job of processes that this one belongs to.
struct Job {
  std::shared_ptr<void> environment;  // outlives the communicator
  std::unique_ptr<Communicator> comm;
  bool threads_may_talk = true;
};

// How a process that torchrun started joins its job; null: such jobs are refused.
void use_torchrun(Job (*join)(const Workers& workers));

// --transport of a command: auto, threads, mpi or c10d. Holds for the whole process.
void add_transport_flag(CLI::App& command);

// Adds all flags of ranks. REQUIRES: `workers` outlives `command`.
void add_rank_flags(CLI::App& command, Workers& workers);

// True if a launcher started this process as a part of a job, whatever --transport says.
bool launched_as_job() noexcept;

// Joins the job that the flag and the launcher's variables name; with `auto`, MPI's comes first.
// Nothing if there is none, if threads are requested, or, with `auto`, if the job has one process
// and --workers is given. Throws InvalidArgument if the transport is not built in, the job does not
// exist, or --workers is above 1 in a job of one process; CommError if torchrun's ranks do not
// connect in time. In an MPI job a late process ends the job.
std::optional<Job> join_job(const Workers& workers);

// Throws InvalidArgument if --workers is given and is not the job's number of ranks.
void check_workers(const Workers& workers, const Communicator& job);

// Runs `body` on the ranks of the job, or else on workers.total threads (0: kDefaultWorkers).
// Throws what a thread threw; in a job an error ends the process.
void run_ranks(const Workers& workers, const RankBody& body);

// The GPU of this rank: ranks of a machine take its GPUs in turn. Throws InvalidArgument if there
// is none. Collective.
std::shared_ptr<Device> gpu_of_rank(Communicator& comm);

// The number of ranks, including this one, whose machine has this machine's name. Collective.
int ranks_on_this_host(Communicator& comm);

inline constexpr int kDefaultWorkers = 4;

// The exit code for this error: 2 for wrong usage, otherwise 1.
int exit_code_of(const std::exception& error) noexcept;

// Ends this process and, through the launcher, the job. One rank reports an error that all share.
[[noreturn]] void leave_job(Communicator& comm, const std::exception& error);

}  // namespace pride::inline program
