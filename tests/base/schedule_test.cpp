// Learning-rate schedules against the formulas of their header.
// SPDX-License-Identifier: Apache-2.0
#include "pride/schedule.h"

#include <gtest/gtest.h>

#include "pride/error.h"

namespace pride {
namespace {

TEST(Schedule, WarmsUpLinearlyAndReachesOne) {
  const Schedule s{ScheduleKind::kConstant, 0, 4, 0};
  EXPECT_DOUBLE_EQ(s.factor(0), 0.25);
  EXPECT_DOUBLE_EQ(s.factor(3), 1);
  EXPECT_DOUBLE_EQ(s.factor(1000), 1);
}

TEST(Schedule, CosineFallsToTheFinalFactorAndStays) {
  const Schedule s{ScheduleKind::kCosine, 110, 10, 0.1};
  EXPECT_DOUBLE_EQ(s.factor(10), 1);
  EXPECT_NEAR(s.factor(60), 0.55, 1e-12);
  EXPECT_NEAR(s.factor(110), 0.1, 1e-12);
  EXPECT_NEAR(s.factor(5000), 0.1, 1e-12);
}

TEST(Schedule, LinearFallsInALine) {
  const Schedule s{ScheduleKind::kLinear, 100, 0, 0};
  EXPECT_DOUBLE_EQ(s.factor(0), 1);
  EXPECT_DOUBLE_EQ(s.factor(25), 0.75);
  EXPECT_DOUBLE_EQ(s.factor(100), 0);
}

TEST(Schedule, RefusesNonsense) {
  EXPECT_THROW(schedule_kind("cosin"), InvalidArgument);
  EXPECT_EQ(schedule_kind("linear"), ScheduleKind::kLinear);
  EXPECT_THROW((Schedule{ScheduleKind::kCosine, 10, 10, 0}).factor(10), InvalidArgument);
  EXPECT_THROW((Schedule{}).factor(-1), InvalidArgument);
}

}  // namespace
}  // namespace pride
