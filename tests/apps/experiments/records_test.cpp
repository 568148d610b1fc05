// Tables and warnings of an experiment, on results made up here.
// SPDX-License-Identifier: Apache-2.0
#include "experiments/records.h"

#include <gtest/gtest.h>

namespace pride::app {
namespace {

Entry entry_of(const std::string& folder, std::uint64_t seed, double first_loss, int batch = 8) {
  return {.run = {.label = "lion",
                  .seed = seed,
                  .settings = {{"batch", batch}},
                  .varied = {{"batch", std::to_string(batch)}}},
          .state = Entry::State::kDone,
          .result = {.folder = folder,
                     .summary = {{"model", {{"parameters", 10}}}, {"world", 4}, {"step_ms", 2}},
                     .first_loss = first_loss}};
}

TEST(UnequalStarts, AreNoneWhereRunsOfASeedBeginAlike) {
  EXPECT_TRUE(
      unequal_starts({entry_of("a", 1, 5), entry_of("b", 2, 6), entry_of("c", 1, 5)}).empty());
  EXPECT_TRUE(unequal_starts({entry_of("a", 1, 5), entry_of("b", 1, 6, 16)}).empty())
      << "other batches";
}

TEST(UnequalStarts, NameRunsOfASeedWithOtherLosses) {
  for (const bool tuning : {false, true}) {
    Entry first = entry_of("a", 1, 5);
    first.run.tuning = tuning;
    const auto found = unequal_starts({first, entry_of("b", 1, 6)});
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found[0], "b and a have seed 1 and began with different losses");
  }
}

TEST(ExperimentTable, HasNoCellOfAMetricThatARunHasNot) {
  Entry text = entry_of("a", 1, 2), image = entry_of("b", 1, 2, 16);
  text.result.final["loss"] = 1.5;
  image.result.final = {{"loss", 1.5}, {"accuracy", 0.25}};
  const std::string table = experiment_table({text, image}, {});
  EXPECT_NE(table.find("| 1.500 |    0.250 |"), std::string::npos) << table;
  EXPECT_NE(table.find("| 1.500 |        - |"), std::string::npos) << table;
}

}  // namespace
}  // namespace pride::app
