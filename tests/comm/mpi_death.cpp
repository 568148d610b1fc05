// Programs whose rank 1 ends badly; how the job ends is what the tests in CMakeLists.txt check.
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

// What rank 1 does while the others wait for it.
void end_badly(const std::string& how) {
  if (how == "kill") std::raise(SIGKILL);
  if (how == "exit") _exit(3);
  if (how == "throw") throw std::runtime_error("out of images");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string how = argc > 1 ? argv[1] : "";
  const pride::MpiEnvironment environment;
  // for programs of another kind in the same job, which wait for this one
  if (how == "late") std::this_thread::sleep_for(std::chrono::seconds(60));
  const auto comm = pride::make_mpi_communicator();
  // "leave": rank 1 goes in good order, and the others learn it from their deadline
  comm->set_timeout(std::chrono::seconds(how == "leave" ? 1 : 300));
  return pride::testing::status_of_rank(*comm, [&] {
    comm->barrier();
    comm->rank() == 1 ? end_badly(how) : comm->barrier();
  });
}
