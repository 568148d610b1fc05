// End of a rank of a test program: sends its error to the other ranks and prints it for the test.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <exception>

#include "pride/communicator.h"

namespace pride::testing {

// The program's exit status: 1 if `body` throws; the exception fails the world and is printed.
template <typename Body>
int status_of_rank(Communicator& comm, Body&& body) {
  try {
    body();
  } catch (const std::exception& e) {
    comm.fail(e.what());
    std::printf("rank %d: %s\n", comm.rank(), e.what());
    std::fflush(stdout);
    return 1;
  }
  return 0;
}

}  // namespace pride::testing
