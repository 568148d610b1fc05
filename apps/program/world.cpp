// Threads, or the processes of a job; and the end of a failed job.
// SPDX-License-Identifier: Apache-2.0
#include "program/world.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "program/flag_values.h"
#include "program/settings.h"
#if PRIDE_HAVE_MPI
#include "pride/comm/mpi_comm.h"
#endif

namespace pride::inline program {
namespace {

std::string& asked_transport() {
  static std::string transport = "auto";
  return transport;
}

using Join = Job (*)(const Workers&);
Join& joins_torchrun() {
  static Join join = nullptr;
  return join;
}

bool under_mpi() noexcept {
#if PRIDE_HAVE_MPI
  return launched_by_mpi();
#else
  return false;
#endif
}

// A program without c10d must not run a job of four ranks as four jobs of one.
bool under_torchrun() noexcept {
  constexpr std::array kNames = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};
  return std::ranges::all_of(kNames, [](const char* name) { return std::getenv(name) != nullptr; });
}

// Ends this process. One rank reports an error that all share.
[[noreturn]] void end_process(int rank, const std::exception& error) {
  const bool shared = dynamic_cast<const CommError*>(&error) != nullptr ||
                      dynamic_cast<const NonFiniteGradient*>(&error) != nullptr ||
                      dynamic_cast<const InvalidArgument*>(&error) != nullptr;
  // rank 0 reports an error that all share, unless it is the missing rank
  const std::string text = error.what();
  const bool rank_0_is_gone = text.find("rank 0 has left") != text.npos ||
                              text.find("from rank 0") != text.npos ||
                              text.find("to rank 0") != text.npos;
  if (rank == 0 || !shared || rank_0_is_gone) {
    std::cerr << "pride: error: rank " << rank << ": " << error.what() << std::endl;
  }
  // time for the peers to receive the reason before the launcher ends them
  std::this_thread::sleep_for(std::chrono::seconds(1));
  std::_Exit(exit_code_of(error));
}

#if PRIDE_HAVE_MPI
// The first collective of every process. It has its own deadline, because no communicator exists
// yet.
void meet_processes(const Workers& workers) {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Ibarrier(MPI_COMM_WORLD, &request);
  const auto deadline = std::chrono::steady_clock::now() + workers.timeout;
  for (int done = 0; MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done == 0;) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    if (std::chrono::steady_clock::now() < deadline) continue;
    // every process reports, because process 0 may be the missing one
    int process = 0, n_processes = 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &process);
    MPI_Comm_size(MPI_COMM_WORLD, &n_processes);
    end_process(process, Error(concat("start: not all ", n_processes, " processes of this MPI job ",
                                      "have started within ", workers.timeout.count(), " ms")));
  }
}
#endif

Job join_mpi_job(const Workers& workers) {
#if PRIDE_HAVE_MPI
  const auto environment = std::make_shared<MpiEnvironment>();
  meet_processes(workers);
  return {environment, make_mpi_communicator(), environment->thread_multiple()};
#else
  (void)workers;
  throw InvalidArgument("--transport mpi: this build has no MPI");
#endif
}

Job join_torchrun_job(const Workers& workers) {
  PRIDE_CHECK(under_torchrun(),
              "--transport c10d: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are not all set, as "
              "torchrun does");
  PRIDE_CHECK(joins_torchrun() != nullptr,
              "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set, as torchrun does, but this "
              "program has no c10d: pride-lab has it for `pride train`, `plan`, `bench step` and "
              "`bench network`, if it was built with libtorch and Gloo; use mpirun for the rest");
  return joins_torchrun()(workers);
}

// From the launcher's variables; 1 without a launcher.
int processes_of_job() {
  for (const char* name : {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && std::atoi(value) > 1) return std::atoi(value);
  }
  return 1;
}

std::string transport_to_use() {
  if (asked_transport() != "auto") return asked_transport();
  return under_mpi() ? "mpi" : under_torchrun() ? "c10d" : "threads";
}

}  // namespace

void use_torchrun(Join join) { joins_torchrun() = join; }

void add_transport_flag(CLI::App& command) {
  asked_transport() = "auto";  // reset values of an earlier command line of this process
  command
      .add_option("--transport", asked_transport(),
                  "threads: ranks are threads of this process; mpi: processes started by mpirun or "
                  "srun; c10d: by torchrun. auto: by how this process was started")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "threads", "mpi", "c10d"}));
}

void add_rank_flags(CLI::App& command, Workers& workers) {
  command
      .add_option("--workers", workers.total,
                  "Threads, each a rank. Default: 4. In a job (mpirun, torchrun) every process is "
                  "a rank and the flag may be left out")
      ->transform(number_reader<int>({1, 1024}));
  add_transport_flag(command);
  const auto set = [&workers](const double& seconds) {
    workers.timeout =
        std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
  };
  command
      .add_option_function<double>(
          "--timeout", set,
          "Maximum wait for another rank in seconds, also at the start; at most a week (604800)")
      ->default_str("300")
      ->transform(number_reader<double>({0.001, 604800}));
}

bool launched_as_job() noexcept { return under_mpi() || under_torchrun(); }

std::optional<Job> join_job(const Workers& workers) {
  const std::string transport = transport_to_use();
  if (transport == "threads") {
    const int processes = launched_as_job() ? processes_of_job() : 1;
    PRIDE_CHECK(processes == 1, "--transport threads: a launcher started ", processes,
                " processes, and each would run alone; leave --transport out");
    return std::nullopt;
  }
  Job job = transport == "mpi" ? join_mpi_job(workers) : join_torchrun_job(workers);
  if (job.comm->size() > 1 || workers.total == 0) return job;
  if (asked_transport() == "auto") return std::nullopt;
  PRIDE_CHECK(workers.total == 1, "--transport ", transport, " --workers ", workers.total,
              ": this is one process, so one worker; start ", workers.total, " with ",
              transport == "mpi" ? "mpirun or srun" : "torchrun",
              ", or leave --transport out for threads");
  return job;
}

void check_workers(const Workers& workers, const Communicator& job) {
  PRIDE_CHECK(workers.total == 0 || workers.total == job.size(), "--workers ", workers.total,
              ": this ", job.transport() == "c10d" ? "torchrun" : "MPI", " job has ", job.size(),
              " processes, and each is a worker; leave the flag out");
}

int exit_code_of(const std::exception& error) noexcept {
  return dynamic_cast<const InvalidArgument*>(&error) != nullptr ? 2 : 1;
}

void leave_job(Communicator& comm, const std::exception& error) {
  comm.fail(error.what());
  end_process(comm.rank(), error);
}

std::shared_ptr<Device> gpu_of_rank(Communicator& comm) {
  const auto n = static_cast<int>(std::max<std::size_t>(1, cuda_report().gpus.size()));
  return cuda_device(local_rank(comm) % n);
}

int ranks_on_this_host(Communicator& comm) {
  using Name = std::array<char, 256>;
  Name mine{};
  gethostname(mine.data(), mine.size() - 1);
  std::vector<Name> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  return static_cast<int>(std::ranges::count(all, mine));
}

void run_ranks(const Workers& workers, const RankBody& body) {
  if (const std::optional<Job> job = join_job(workers)) {
    try {
      job->comm->set_timeout(workers.timeout);
      check_workers(workers, *job->comm);
      return body(*job->comm, job->threads_may_talk);
    } catch (const std::exception& error) {
      leave_job(*job->comm, error);
    }
  }
  run_world(workers.total == 0 ? kDefaultWorkers : workers.total, [&](Communicator& comm) {
    comm.set_timeout(workers.timeout);
    body(comm, true);
  });
}

}  // namespace pride::inline program
