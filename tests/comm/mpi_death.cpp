// Programs whose rank 1 ends badly; the tests in CMakeLists.txt check the end of the job.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "pride/comm/mpi_comm.h"
#include "support/rank_end.h"

namespace {

// Rank 1's end, while the others wait for it.
void end_badly(const std::string& ending) {
  if (ending == "kill") std::raise(SIGKILL);
  if (ending == "exit") _exit(3);
  if (ending == "throw") throw std::runtime_error("out of images");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string ending = argc > 1 ? argv[1] : "";
  const pride::MpiEnvironment environment;
  // for programs of another kind in the same job, which wait for this one
  if (ending == "late") std::this_thread::sleep_for(std::chrono::seconds(60));
  const auto comm = pride::make_mpi_communicator();
  // "leave": rank 1 exits normally, and the others fail at their deadline
  comm->set_timeout(std::chrono::seconds(ending == "leave" ? 1 : 300));
  return pride::testing::status_of_rank(*comm, [&] {
    comm->barrier();
    comm->rank() == 1 ? end_badly(ending) : comm->barrier();
  });
}
