// Rows made ahead by threads: all of them, whatever the number of threads, and errors.
// SPDX-License-Identifier: Apache-2.0
#include "train/vision/prefetcher.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "pride/error.h"
#include "support/temp_folder.h"
#include "train_names.h"

namespace pride::app {
namespace {

constexpr int kThreads[] = {0, 1, 2, 5};

TEST(Prefetcher, MakesEveryRowOfEveryBatchOnce) {
  for (const int threads : kThreads) {
    Prefetcher prefetcher(threads);
    std::vector<std::vector<int>> batches;
    for (std::size_t b = 0; b < 50; ++b) batches.emplace_back(b % 7);
    for (std::size_t b = 0; b < batches.size() + 3; ++b) {
      if (b < batches.size()) {
        std::vector<int>& rows = batches[b];
        prefetcher.begin(rows.size(), [&rows](std::size_t row) { ++rows[row]; });
      }
      if (b < 3) continue;
      prefetcher.wait();
      for (const int made : batches[b - 3]) ASSERT_EQ(made, 1) << "batch " << b - 3;
    }
    EXPECT_EQ(prefetcher.pending(), 0U);
    EXPECT_THROW(prefetcher.wait(), InvalidArgument);
  }
}

TEST(Prefetcher, ThrowsWhatTheFirstFailingRowThrew) {
  for (const int threads : kThreads) {
    for (int round = 0; round < 20; ++round) {
      Prefetcher prefetcher(threads);
      const auto bad = [](std::size_t row) {
        if (row == 9 || row == 11 || row >= 20) throw DataError(concat("row ", row));
      };
      std::atomic<int> good = 0;
      prefetcher.begin(4, [&](std::size_t) { ++good; });
      prefetcher.begin(30, bad);
      prefetcher.begin(4, [&](std::size_t) { ++good; });
      prefetcher.wait();
      test::expect_error<DataError>([&] { prefetcher.wait(); }, {"row 9"});
      prefetcher.wait();
      EXPECT_EQ(good, 8) << "the batches before and after are whole";
    }
  }
}

TEST(Prefetcher, EndsWithoutMakingRowsThatNoThreadAwaits) {
  for (const int threads : kThreads) {
    std::atomic<int> made = 0;
    {
      Prefetcher prefetcher(threads);
      for (int b = 0; b < 3; ++b) {
        prefetcher.begin(1000, [&](std::size_t) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
          ++made;
        });
      }
    }
    EXPECT_LT(made, 1000) << threads;
  }
}

TEST(Prefetcher, EndsAfterAnError) {
  Prefetcher prefetcher(2);
  prefetcher.begin(1, [](std::size_t) { throw DataError("first"); });
  prefetcher.begin(100, [](std::size_t) { throw DataError("second"); });
  EXPECT_THROW(prefetcher.wait(), DataError);
}

}  // namespace
}  // namespace pride::app
