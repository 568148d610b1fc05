// main() of `pride`, pride-torch and pride-coord.
// SPDX-License-Identifier: Apache-2.0
#include <csignal>

#include "program.h"

int main(int argc, char** argv) {
  // a closed pipe must not kill a training run in the middle of a checkpoint
  std::signal(SIGPIPE, SIG_IGN);
#if PRIDE_BECOMES_TORCH
  return pride_main(argc, argv, pride::app::to_torch);
#else
  return pride_main(argc, argv, nullptr);
#endif
}
