// Programs whose rank 1 ends badly; the tests in CMakeLists.txt check the other ranks' errors.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "pride/comm/c10d_env.h"
#include "support/rank_end.h"

namespace {

// Rank 1's end, while the others wait for it.
void end_badly(pride::Communicator& comm, const std::string& ending) {
  if (ending == "kill") std::raise(SIGKILL);
  if (ending == "stop") std::raise(SIGSTOP);
  if (ending == "exit") _exit(3);
  if (ending == "throw") throw std::runtime_error("out of images");
  if (ending == "middle") {
    const std::vector<std::byte> bytes(std::size_t{256} << 20);
    comm.start_send(0, 7, bytes);
    std::raise(SIGKILL);
  }
}

void wait_for_rank_1(pride::Communicator& comm, const std::string& ending) {
  if (ending != "middle" || comm.rank() != 0) return comm.barrier();
  std::vector<std::byte> bytes(std::size_t{256} << 20);
  pride::Ticket ticket = comm.start_recv(1, 7, bytes);
  comm.wait(ticket);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string ending = argc > 1 ? argv[1] : "";
  const auto comm = pride::make_c10d_communicator_from_env();
  // a stopped process is detected by the deadline only, a dead one at once
  comm->set_timeout(std::chrono::seconds(ending == "stop" ? 1 : 300));
  return pride::testing::status_of_rank(*comm, [&] {
    comm->barrier();
    comm->rank() == 1 ? end_badly(*comm, ending) : wait_for_rank_1(*comm, ending);
    comm->barrier();
  });
}
