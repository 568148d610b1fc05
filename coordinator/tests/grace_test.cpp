// The grace window, and when a round may close. Oracle: numbers computed by hand.
// SPDX-License-Identifier: Apache-2.0
#include "coord/grace.h"

#include <gtest/gtest.h>

#include "coord/open_round.h"

namespace pride::coord::test {
namespace {

Time at(double seconds) {
  return Time(std::chrono::duration_cast<std::chrono::nanoseconds>(Seconds(1000 + seconds)));
}

TEST(GraceWindow, IsTheMostBeforeAnyRoundAndTheLeastIfNobodyComesAfterQuorums) {
  GraceWindow grace({.least_grace = Seconds(0.5), .most_grace = Seconds(20)});
  EXPECT_DOUBLE_EQ(grace.window().count(), 20);
  grace.quorum(0, at(0));
  EXPECT_DOUBLE_EQ(grace.window().count(), 0.5);
}

TEST(GraceWindow, IsAQuarterMoreThanThe95thPercentileLateOnesIncluded) {
  GraceWindow grace({.most_grace = Seconds(100)});
  grace.quorum(0, at(0));
  for (int i = 1; i <= 20; ++i) grace.arrived(0, at(i));
  EXPECT_DOUBLE_EQ(grace.window().count(), 1.25 * 19);
  grace.quorum(1, at(50));
  EXPECT_EQ(grace.arrived(0, at(60)), Seconds(60));  // late by a round
  EXPECT_DOUBLE_EQ(grace.window().count(), 1.25 * 20);
}

TEST(GraceWindow, StaysWithinItsLimitsAndForgetsOldRounds) {
  GraceWindow grace({.most_grace = Seconds(10)});
  grace.quorum(0, at(0));
  grace.arrived(0, at(50));
  EXPECT_DOUBLE_EQ(grace.window().count(), 10);
  for (int round = 1; round <= 16; ++round) {
    EXPECT_TRUE(grace.arrived(0, at(50)));
    grace.quorum(round, at(100 + round));
    grace.arrived(round, at(102 + round));
  }
  EXPECT_FALSE(grace.arrived(0, at(200)));
  EXPECT_DOUBLE_EQ(grace.window().count(), 2.5);
}

TEST(GraceWindow, IsWhatIsSetIfItIs) {
  GraceWindow grace({.grace = Seconds(3)});
  grace.quorum(0, at(0));
  grace.arrived(0, at(9));
  EXPECT_DOUBLE_EQ(grace.window().count(), 3);
}

TEST(Quorum, IsACountOrAShareAndNeverBelowTheFewestWorkers) {
  EXPECT_EQ(quorum_of({.share = 0.5}, 7), 4);
  EXPECT_EQ(quorum_of({.share = 0.1}, 10), 1);
  EXPECT_EQ(quorum_of({.min_workers = 3, .share = 0.5}, 2), 3);
  EXPECT_EQ(quorum_of({.count = 5, .share = 0.1}, 100), 5);
}

TEST(Quorum, ClosesAtOnceWhenAllHaveVotedAndElseAfterTheWindow) {
  const QuorumOptions options{.min_workers = 2};
  const auto close = [&](Votes votes, std::optional<Time> quorum_at, double now) {
    return may_close(options, votes, quorum_at, Seconds(4), at(now));
  };
  EXPECT_EQ(close({.in_group = 1, .waited_for = 1, .waited_and_in = 1}, {}, 0), Close::kNot);
  EXPECT_EQ(close({.in_group = 2, .waited_for = 2, .waited_and_in = 2}, {}, 0), Close::kAll);
  EXPECT_EQ(close({.in_group = 2, .waited_for = 3, .waited_and_in = 2}, at(0), 3.9), Close::kNot);
  EXPECT_EQ(close({.in_group = 2, .waited_for = 3, .waited_and_in = 2}, at(0), 4), Close::kQuorum);
  // a worker that died after its vote is waited for no more, and its vote counts
  EXPECT_EQ(close({.in_group = 2, .waited_for = 1, .waited_and_in = 1}, {}, 0), Close::kAll);
}

HeldBallot ballot(int number, std::uint64_t hash, std::string scalars = "s") {
  HeldBallot held;
  held.number = number;
  held.params_hash = hash;
  held.scalars = std::move(scalars);
  return held;
}

TEST(OpenRound, TakesTheLargestGroupAndOfSeveralTheFirst) {
  OpenRound round(0);
  EXPECT_TRUE(round.group({}).empty());
  round.add(ballot(4, 1));
  round.add(ballot(2, 2));
  EXPECT_EQ(round.group({})[0]->number, 4);
  round.add(ballot(3, 1, "other scalars"));
  round.add(ballot(0, 2));
  ASSERT_EQ(round.group({}).size(), 2U);
  EXPECT_EQ(round.group({})[0]->number, 2);
  EXPECT_EQ(round.group(1).size(), 1U);  // the hash is known
  EXPECT_TRUE(round.group(9).empty());
}

}  // namespace
}  // namespace pride::coord::test
