// run_parallel(): each task once, and errors. Oracle: counts.
// SPDX-License-Identifier: Apache-2.0
#include "base/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

namespace pride {
namespace {

TEST(RunParallel, RunsEachTaskOnce) {
  for (const std::size_t n : {0, 1, 2, 1000}) {
    std::vector<std::atomic<int>> runs(n);
    run_parallel(n, [&](std::size_t i) { ++runs[i]; });
    for (const auto& times : runs) EXPECT_EQ(times, 1);
  }
}

TEST(RunParallel, RethrowsAnErrorOnceAllThreadsAreDone) {
  std::atomic<int> inside = 0;
  const auto body = [&](std::size_t i) {
    ++inside;
    if (i == 3) {
      --inside;
      throw std::runtime_error("task 3");
    }
    --inside;
  };
  EXPECT_THROW(run_parallel(100, body), std::runtime_error);
  EXPECT_EQ(inside, 0);
}

}  // namespace
}  // namespace pride
