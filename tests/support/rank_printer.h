// main() of a GoogleTest program whose ranks run the same cases as processes: rank 0 prints as
// usual, the others print their failures.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace pride::ranks {

class FailurePrinter : public testing::EmptyTestEventListener {
 public:
  explicit FailurePrinter(int rank) : rank_(rank) {}

  void OnTestStart(const testing::TestInfo& info) override {
    test_ = std::string(info.test_suite_name()) + "." + info.name();
  }

  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "rank %d: %s: %s:%d: %s\n", rank_, test_.c_str(),
                 result.file_name() ? result.file_name() : "", result.line_number(),
                 result.message());
  }

 private:
  int rank_;
  std::string test_;
};

// K of `--world=K`; 0 without it. Any other number of ranks is an error: the wrong launcher would
// start K worlds of one rank, and all would pass.
inline int promised_world(int argc, char** argv) {
  const std::string option = "--world=";
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind(option, 0) == 0) return std::atoi(argument.c_str() + option.size());
  }
  return 0;
}

// Not 0 if a case failed, or if none ran: such a program has tested nothing.
inline int run_tests_as(int rank) {
  if (rank != 0) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailurePrinter(rank));
  }
  const int failed = RUN_ALL_TESTS();
  return testing::UnitTest::GetInstance()->test_to_run_count() == 0 ? 1 : failed;
}

}  // namespace pride::ranks
