// main() of `pride` and of pride-torch.
// SPDX-License-Identifier: Apache-2.0
#include <csignal>

#include "program.h"

int main(int argc, char** argv) {
  // a reader that goes away must not kill a training run in the middle of a checkpoint
  std::signal(SIGPIPE, SIG_IGN);
  return pride_main(argc, argv);
}
