// The verdict on a plan (what is the network's, and what the arithmetic's), and the table and the
// chart over numbers of ranks. Oracle: rows and divisions by hand.
// SPDX-License-Identifier: Apache-2.0
#include "plan/outcome.h"

#include <gtest/gtest.h>

#include "pride/error.h"

namespace pride::app {
namespace {

PlanRow row(const std::string& name, bool dense, double step_s, double no_network_s) {
  PlanRow made;
  made.method.name = name;
  made.method.matrix_s = name.find("muon") == std::string::npos ? 0 : 0.25;
  made.dense = dense;
  made.in_order.step_s = step_s + 1;
  made.in_order.arithmetic_s = 0.3;
  made.overlapped.step_s = step_s;
  made.no_network_s = no_network_s;
  return made;
}

// Each of the words in the verdict on a dense method and another, in this order.
void expect_verdict(const PlanRow& dense, const PlanRow& small,
                    const std::vector<std::string>& words, const char* not_said) {
  const std::string text = verdict({{.params = 1000, .compute_s = 0.5}, {dense, small}});
  std::size_t at = 0;
  for (const std::string& word : words) {
    at = text.find(word, at);
    ASSERT_NE(at, std::string::npos) << word << " in: " << text;
  }
  EXPECT_EQ(text.find(not_said), std::string::npos) << text;
}

TEST(Verdict, OfEqualArithmeticIsTheNetworks) {
  expect_verdict(row("lion", true, 2, 1), row("dlion-vote", false, 1.01, 1),
                 {"Compression pays: dlion-vote", "1.98 times", "of lion."}, "no time");
  expect_verdict(row("lion", true, 1.01, 1), row("dlion-vote", false, 1, 1),
                 {"Compression will not help here: lion takes 1.01 s", "1.01 times"}, "arithmetic");
}

TEST(Verdict, TellsArithmeticFromTheNetwork) {
  expect_verdict(row("muon", true, 2, 1.9), row("dlion-vote", false, 1, 0.95),
                 {"will not help", "2 times", "by its arithmetic", "2 times as many",
                  "dlion-vote computes 300 ms, muon computes 300 ms (Newton-Schulz: 250 ms)"},
                 "pays");
  expect_verdict(row("muon", true, 4, 1.9), row("dlion-vote", false, 1, 0.95),
                 {"pays", "4 times", "takes no time", "2 times"}, "will not help");
  expect_verdict(row("lion", true, 1, 0.5), row("dlion-muon", false, 1, 0.9),
                 {"will not help", "1 times its steps per second, for its arithmetic.", "0.56"},
                 "pays");
}

std::vector<Plan> two_worlds() {
  const auto plan = [](int world, double lion_s, double vote_s) {
    return Plan{{.world = world, .compute_s = 0.2},
                {row("lion", true, lion_s, 1), row("dlion-vote", false, vote_s, 1)}};
  };
  return {plan(4, 0.4, 0.2), plan(1024, 0.8, 0.25)};
}

TEST(Scaling, TheTableHasARowForEachNumberOfRanks) {
  const std::string table = scaling_table(two_worlds());
  for (const char* part : {"| 1,024 |", "dlion-vote", "800 ms (25 %)", "250 ms (80 %)"}) {
    EXPECT_NE(table.find(part), std::string::npos) << part << " in\n" << table;
  }
}

TEST(Scaling, TheChartHasALineForEachMethod) {
  const Chart chart = scaling_chart(two_worlds());
  ASSERT_EQ(chart.series.size(), 2u);
  EXPECT_EQ(chart.x.ticks, (std::vector<double>{4, 1024}));
  EXPECT_EQ(chart.series[1].name, "dlion-vote");
  EXPECT_NEAR(chart.series[0].y[1], 25, 1e-9);
  EXPECT_NEAR(chart.series[1].y[0], 100, 1e-9);
  EXPECT_THROW(scaling_chart({two_worlds()[0]}), Error);
}

TEST(Verdict, NeedsBothKinds) { EXPECT_EQ(verdict({{}, {row("lion", true, 1, 1)}}), ""); }

}  // namespace
}  // namespace pride::app
