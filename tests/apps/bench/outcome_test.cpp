// The verdict on a plan (what is the network's, and what the arithmetic's), the table and the chart
// over numbers of ranks, and units. Oracle: rows, divisions and numbers by hand.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "pride/error.h"
#include "program/plan/fewer_bits.h"
#include "program/plan/outcome.h"
#include "program/units.h"
#include "rules/orthogonalise.h"
#include "support/temp_folder.h"

namespace pride::app {
namespace {

using test::expect_contains;

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
                 {"will not help", "2 times", "because of its arithmetic", "2 times as many",
                  "dlion-vote computes 300 ms, muon computes 300 ms (Newton-Schulz: 250 ms)"},
                 "pays");
  expect_verdict(row("muon", true, 4, 1.9), row("dlion-vote", false, 1, 0.95),
                 {"pays", "4 times", "takes no time", "2 times"}, "will not help");
  expect_verdict(
      row("lion", true, 1, 0.5), row("dlion-muon", false, 1, 0.9),
      {"will not help", "1 times its steps per second, because of its arithmetic.", "0.56"},
      "pays");
}

// In order, without arithmetic: 10^6 bytes against 10^5. Compression pays while
// (C + 10^6 / G) >= 1.03 (C + 10^5 / G), C = 1 s: G <= (10^6 - 1.03 10^5) / 0.03.
TEST(PaysUpTo, IsWhereTheGainEnds) {
  const auto of_bytes = [](const std::string& name, bool dense, double bytes) {
    PlanRow made = row(name, dense, 1, 1);
    made.method.phases = 0;
    made.method.bytes = bytes;
    made.method.whole_gradient = true;
    return made;
  };
  Plan plan{{.world = 4, .network = {.bytes_per_s = 1e9}, .compute_s = 1, .exchange_threads = 1},
            {of_bytes("lion", true, 1e6), of_bytes("dlion-vote", false, 1e5)}};
  EXPECT_NEAR(pays_up_to(plan) / ((1e6 - 1.03e5) / 0.03), 1, 2e-3);
  EXPECT_EQ(to_json(plan)["pays_up_to_bytes_per_s"], pays_up_to(plan));
  plan.rows[1].method.bytes = 2e6;
  EXPECT_EQ(pays_up_to(plan), 0) << "it sends more";
  EXPECT_TRUE(to_json(plan)["pays_up_to_bytes_per_s"].is_null());
  plan.rows.pop_back();
  EXPECT_EQ(pays_up_to(plan), 0) << "nothing is compressed";
}

// In order, without arithmetic: a step of C = 1 s and 187,500 bytes at 10^6 bytes/s may be 1.03 s
// long. 187,500 / turns <= 30,000: 8 turns. Of h steps one is longer by 0.1875 s: 0.1875 / h <=
// 0.03.
TEST(FewerBits, AreAsManyAsHideTheExchange) {
  if (!rules::has_blas()) GTEST_SKIP() << "this build has no CBLAS, so no turn-muon";
  PlanRow vote = row("dlion-vote", false, 1, 1);
  vote.method.phases = 0;
  vote.method.bytes = 2 * 0.75 * 1e6 / 8;
  vote.method.whole_gradient = true;
  Plan plan{{.world = 4,
             .network = {.bytes_per_s = 1e6},
             .params = 1e6,
             .compute_s = 1,
             .exchange_threads = 1},
            {vote}};
  const FewerBits found = fewer_bits(plan);
  EXPECT_TRUE(found.needed);
  EXPECT_EQ(found.turns, 8);
  EXPECT_EQ(found.h, 8);
  expect_contains(advice_on(plan), "turn-muon with turns=8 does");
  expect_contains(advice_on(plan), "local-muon or local-ef with h=8 does");
  EXPECT_EQ(to_json(plan)["fewer_bits"]["h"], 8);

  plan.facts.network.latency_s = 0.1;  // two in each step: 0.2 s, of one in 8 steps 0.025 s
  plan.rows[0].method.phases = 2;
  EXPECT_EQ(fewer_bits(plan).turns, 0);
  EXPECT_EQ(fewer_bits(plan).h, 16);
  expect_contains(advice_on(plan), "turn-muon does not hide it: each step waits for a round trip");

  plan.facts.network = {.bytes_per_s = 1e9};
  EXPECT_FALSE(fewer_bits(plan).needed);
  EXPECT_EQ(advice_on(plan), "");
}

TEST(Notes, SayWhatIsNotModelledWhereRanksHaveLessThanTwoCores) {
  const auto notes = [](int world, double cores) {
    return notes_on({{.world = world, .cores = cores}, {row("lion", true, 1, 1)}});
  };
  expect_contains(notes(4, 0.5), "Not in the model: here backward needs the cores that move bytes");
  EXPECT_EQ(notes(4, 2), "");
  EXPECT_EQ(notes(1, 0.5), "") << "no bytes";
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
  expect_contains(table, {"| 1,024 |", "dlion-vote", "800 ms (25 %)", "250 ms (80 %)"});
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

TEST(Units, ReadRatesPerSecondAsBytes) {
  EXPECT_DOUBLE_EQ(parse_rate("1Gbit"), 125e6);
  EXPECT_DOUBLE_EQ(parse_rate("100Mbit"), 12.5e6);
  EXPECT_DOUBLE_EQ(parse_rate("12.5MB"), 12.5e6);
  EXPECT_DOUBLE_EQ(parse_rate("800bit"), 100);
  EXPECT_DOUBLE_EQ(parse_rate("1e3kB"), 1e6);
  for (const char* text : {"1Gbit/s", "1Gbps", "1gbit", "1 Gbit/s", "1Gb/s", "1e9bit", "1000Mbits",
                           "125MB/s", "125MBps"}) {
    EXPECT_DOUBLE_EQ(parse_rate(text), 125e6) << text;
  }
  EXPECT_DOUBLE_EQ(parse_rate("2MiB/s"), 2 << 20);
}

TEST(Units, ReadTimesAsSeconds) {
  EXPECT_DOUBLE_EQ(parse_time("50us"), 50e-6);
  EXPECT_DOUBLE_EQ(parse_time("1.5s"), 1.5);
  EXPECT_DOUBLE_EQ(parse_time("0ms"), 0);
  EXPECT_DOUBLE_EQ(parse_time("20ns"), 20e-9);
  EXPECT_DOUBLE_EQ(parse_time("3 \u00B5s"), 3e-6);
  EXPECT_DOUBLE_EQ(parse_time("2min"), 120);
}

TEST(Units, RefuseWhatHasNoUnitOrNoSense) {
  for (const char* text : {"", "1", "Gbit", "1e9", "1  Gbit", "0Gbit", "-1Gbit", "nanGbit",
                           "infGbit", "1e400Gbit", "1e308Gbit", "1Gbitss", "1ms", "1/s"}) {
    EXPECT_THROW(parse_rate(text), InvalidArgument) << text;
  }
  for (const char* text : {"", "1", "ms", "-1ms", "nanms", "1m", "1Gbit"}) {
    EXPECT_THROW(parse_time(text), InvalidArgument) << text;
  }
  test::expect_error<InvalidArgument>([] { parse_rate("7parsec"); }, {"'7parsec'"});
}

TEST(Units, WriteThreeDigits) {
  EXPECT_EQ(time_text(21e-6), "21 us");
  EXPECT_EQ(time_text(0.0153), "15.3 ms");
  EXPECT_EQ(time_text(999.7e-6), "1 ms");
  EXPECT_EQ(time_text(0.9997), "1 s");
  EXPECT_EQ(time_text(0.254), "254 ms");
  EXPECT_EQ(time_text(2.5), "2.5 s");
  EXPECT_EQ(time_text(1234), "1234 s");
  EXPECT_EQ(time_text(1e300), "1e+300 s");
  EXPECT_EQ(bandwidth_text(117.6e6), "940.8 Mbit/s");
  EXPECT_EQ(bandwidth_text(1.25e9), "10.00 Gbit/s");
}

}  // namespace

}  // namespace pride::app
