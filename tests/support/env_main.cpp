// main() of GoogleTest programs whose ranks connect by RANK, WORLD_SIZE, MASTER_ADDR and
// MASTER_PORT: all run the same cases together. The launcher's status is not 0 if a rank's is.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "support/rank_printer.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const char* rank = std::getenv("RANK");
  const char* world = std::getenv("WORLD_SIZE");
  const int promised = pride::ranks::promised_world(argc, argv);
  if (rank == nullptr || world == nullptr || std::atoi(world) != promised) {
    std::fprintf(stderr, "rank %s of %s; --world promised %d ranks\n", rank ? rank : "none",
                 world ? world : "none", promised);
    return 2;
  }
  return pride::ranks::run_tests_as(std::atoi(rank));
}
