// The table and the chart over numbers of ranks. Oracle: divisions by hand.
// SPDX-License-Identifier: Apache-2.0
#include "plan/scaling.h"

#include <gtest/gtest.h>

#include "pride/error.h"

namespace pride::app {
namespace {

const std::vector<std::string> kMethods = {"lion", "dlion-vote"};
const std::vector<WorldSteps> kWorlds = {{4, {0.4, 0.2}}, {1024, {0.8, 0.25}}};

TEST(Scaling, TheTableHasARowForEachNumberOfRanks) {
  const std::string table = scaling_table(kMethods, 0.2, kWorlds);
  EXPECT_NE(table.find("| 1,024 |"), std::string::npos) << table;
  EXPECT_NE(table.find("800 ms (25 %)"), std::string::npos) << table;
  EXPECT_NE(table.find("250 ms (80 %)"), std::string::npos) << table;
}

TEST(Scaling, TheChartHasALineForEachMethod) {
  const Chart chart = scaling_chart("title", kMethods, 0.2, kWorlds);
  ASSERT_EQ(chart.series.size(), 2u);
  EXPECT_EQ(chart.x.ticks, (std::vector<double>{4, 1024}));
  EXPECT_EQ(chart.series[1].name, "dlion-vote");
  EXPECT_NEAR(chart.series[0].y[1], 25, 1e-9);
  EXPECT_NEAR(chart.series[1].y[0], 100, 1e-9);
  EXPECT_THROW(scaling_chart("title", kMethods, 0.2, {kWorlds[0]}), Error);
}

}  // namespace
}  // namespace pride::app
