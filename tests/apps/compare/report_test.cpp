// Warnings of `pride compare`, on results made up here.
// SPDX-License-Identifier: Apache-2.0
#include "compare/report.h"

#include <gtest/gtest.h>

namespace pride::app {
namespace {

RunResult result_of(const std::string& folder, std::uint64_t seed, const std::string& hash,
                    double first_loss) {
  RunResult result{.run = {.label = "lion", .seed = seed, .folder = folder}};
  result.summary = {{"data", {{"hash", hash}}}};
  result.first_loss = first_loss;
  return result;
}

TEST(UnequalStarts, AreNoneWhereRunsOfASeedBeginAlike) {
  EXPECT_TRUE(
      unequal_starts({{.who = {}, .runs = {result_of("a", 1, "x", 5), result_of("b", 2, "x", 6)}},
                      {.who = {}, .runs = {result_of("c", 1, "x", 5)}}})
          .empty());
}

TEST(UnequalStarts, NameRunsOfASeedWithOtherLosses) {
  const auto found = unequal_starts({{.who = {}, .runs = {result_of("a", 1, "x", 5)}},
                                     {.who = {}, .runs = {result_of("b", 1, "x", 6)}}});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0], "b and a have seed 1 and began with different losses");
}

TEST(UnequalStarts, NameRunsOfOtherDataWhateverTheirSeed) {
  const auto found =
      unequal_starts({{.who = {}, .runs = {result_of("a", 1, "x", 5), result_of("b", 2, "y", 6)}}});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0], "b and a were made with different data");
}

TEST(UnequalStarts, CountDataOfTuningRunsToo) {
  const auto found = unequal_starts(
      {{.who = {}, .tuning = {result_of("t", 100, "y", 6)}, .runs = {result_of("a", 1, "x", 5)}}});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0], "t and a were made with different data");
}

TEST(ResultsTable, HasNoCellOfAMetricThatARunHasNot) {
  RunResult run = result_of("a", 1, "x", 2);
  run.parameters = 10;
  run.world = 4;
  run.final["loss"] = 1.5;
  const Entry text{.who = {}, .runs = {run}};
  run.final["accuracy"] = 0.25;
  const std::string table = results_table({{.who = {}, .runs = {run}}, text}, "accuracy");
  EXPECT_NE(table.find("| 1.500 |    0.250 |"), std::string::npos) << table;
  EXPECT_NE(table.find("| 1.500 |        - |"), std::string::npos) << table;
}

}  // namespace
}  // namespace pride::app
