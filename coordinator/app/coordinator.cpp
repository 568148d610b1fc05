// The program pride-coordinator, which `pride` starts.
// SPDX-License-Identifier: Apache-2.0
#include "commands.h"
#include "program/blas.h"
#include "program/program.h"

namespace pride::app {
namespace {

const std::vector<Command> kCommands = {
    {"serve",
     "Coordinate workers that join and leave: a round closes when all have voted, or at a quorum",
     {"--dir runs/coordinator --listen 127.0.0.1:4770 --http 127.0.0.1:8080",
      "--dir runs/coordinator --listen 0.0.0.0:4770 --certificates certs/server --quorum 5"},
     add_serve},
    {"journal",
     "Check a coordinator's journal and print its rounds as JSON lines",
     {"runs/coordinator", "runs/coordinator --replay | tail -1"},
     add_journal},
    {"certs",
     "Make and revoke the certificates of a project's coordinator and workers",
     {"init certs", "server certs --name coordinator.example.org,192.0.2.1", "worker certs alice",
      "revoke certs alice", "list certs"},
     add_certs},
};

}  // namespace
}  // namespace pride::app

int pride_main(int argc, char** argv) {
  static const pride::Program program{
      .commands = pride::app::kCommands, .is_elsewhere = [](const std::string& path) {
        return path == "manual" || path == "completion";  // `pride` has them, too
      }};
  return run_program(program, argc, argv);
}

int main(int argc, char** argv) {
  pride::use_kernels_of_this_cpu(argv);
  return pride_main(argc, argv);
}
