// Tables and warnings of an experiment, on results made up here.
// SPDX-License-Identifier: Apache-2.0
#include "experiments/table.h"

#include <gtest/gtest.h>

namespace pride::app {
namespace {

Entry entry_of(const std::string& folder, std::uint64_t seed, double first_loss) {
  Entry entry{.run = {.label = "lion", .seed = seed, .settings = {{"batch", 8}}, .folder = folder},
              .state = Entry::State::kDone};
  entry.result.run = entry.run;
  entry.result.summary = {{"data", {{"hash", "x"}}}};
  entry.result.first_loss = first_loss;
  return entry;
}

TEST(UnequalStarts, AreNoneWhereRunsOfASeedBeginAlike) {
  EXPECT_TRUE(
      unequal_starts({entry_of("a", 1, 5), entry_of("b", 2, 6), entry_of("c", 1, 5)}).empty());
}

TEST(UnequalStarts, NameRunsOfASeedWithOtherLosses) {
  const auto found = unequal_starts({entry_of("a", 1, 5), entry_of("b", 1, 6)});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0], "b and a have seed 1 and began with different losses");
}

TEST(UnequalStarts, AreNoneOfRunsWithOtherBatches) {
  Entry other = entry_of("b", 1, 6);
  other.run.settings["batch"] = 16;
  EXPECT_TRUE(unequal_starts({entry_of("a", 1, 5), other}).empty());
}

TEST(UnequalStarts, CountTuningRunsToo) {
  Entry tuning = entry_of("t", 1, 6);
  tuning.run.tuning = true;
  EXPECT_EQ(unequal_starts({tuning, entry_of("a", 1, 5)}).size(), 1U);
}

TEST(ResultsTable, HasNoCellOfAMetricThatARunHasNot) {
  RunResult text = entry_of("a", 1, 2).result;
  text.parameters = 10;
  text.world = 4;
  text.final["loss"] = 1.5;
  RunResult image = text;
  image.final["accuracy"] = 0.25;
  const std::string table = results_table(
      {{.label = "image", .runs = {&image}}, {.label = "text", .runs = {&text}}}, "accuracy");
  EXPECT_NE(table.find("| 1.500 |    0.250 |"), std::string::npos) << table;
  EXPECT_NE(table.find("| 1.500 |        - |"), std::string::npos) << table;
}

}  // namespace
}  // namespace pride::app
