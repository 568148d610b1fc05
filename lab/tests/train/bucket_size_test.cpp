// The choice of bucket size: the rule, and cases without a choice.
// SPDX-License-Identifier: Apache-2.0
#include "train/step_times.h"

#include <gtest/gtest.h>

#include "pride/comm/thread_comm.h"
#include "train_names.h"

namespace pride::app {
namespace {

TEST(BucketSize, BalancesLatenciesAgainstTheExposedLastBucket) {
  EXPECT_EQ(buckets_for(0.9, 1e-4, 1e9), 95);  // sqrt(9000)
  EXPECT_EQ(buckets_for(0.04, 1e-4, 1e9), 20);
  EXPECT_EQ(buckets_for(0.04, 1e-2, 1e9), 2);
}

TEST(BucketSize, StaysBetweenTheWholeModelAndBucketsTooSmallToPay) {
  EXPECT_EQ(buckets_for(1e-6, 1, 1e8), 1);
  EXPECT_EQ(buckets_for(1e3, 1e-9, 7.0 * (1 << 20)), 7);
  EXPECT_EQ(buckets_for(1, 0, 7.0 * (1 << 20)), 7);  // no latency
  EXPECT_EQ(buckets_for(1, 1e-4, 1000), 1);
}

TEST(BucketSize, IsThatOfTheFlagOnThreads) {
  TrainOptions options;
  options.steps = 1;
  const TrainPlan given = make_plan(options, 2);
  run_world(2, [&](Communicator& comm) {
    TrainPlan plan = given;
    choose_bucket_size(comm, plan);
    EXPECT_EQ(plan.optimizer.bucket_coords, std::size_t{1} << 20);
    EXPECT_EQ(plan.notes, given.notes);
  });
}

}  // namespace
}  // namespace pride::app
