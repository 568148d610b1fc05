// Late votes: which of them make rounds wait for a worker again. Oracle: rounds that close at once.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "rig.h"

namespace pride::coord::test {
namespace {

// Bob follows and sends late votes; the rounds of ann, who votes, wait for him or not.
class LateVotes : public ::testing::Test {
 protected:
  static CoordinatorOptions options(std::optional<Seconds> grace) {
    CoordinatorOptions options;
    options.quorum.count = 1;
    options.quorum.grace = grace;
    options.quorum.most_grace = Seconds(8);
    return options;
  }
  void start(std::optional<Seconds> grace) {
    rig.emplace(options(grace));
    replica.emplace(rig->run());
    for (const char* name : {"ann", "bob"}) rig->join(name);
  }
  // Ann votes; the round is closed when she has the record, and bob may have it, too.
  void round() {
    rig->vote({.number = 0, .round = next}, replica->hash());
    closed_at_once = std::ssize(rig->seen.rounds) == next + 1;
    if (!closed_at_once) rig->pass(8), rig->tick();
    replica->apply(bytes_of(rig->get(RECORD, 0, next)));
    rig->get(RECORD, 1, next++);
  }
  VoteReply::Status empty_vote(std::int64_t round) {
    VoteRequest request;
    request.set_session(rig->session(1));
    request.set_round(round);
    return (*rig)
        ->vote(request, {.certificate = "", .address = "192.0.2.1:1000"}, rig->now())
        .status();
  }

  std::optional<Rig> rig;
  std::optional<Replica> replica;
  std::int64_t next = 0;
  bool closed_at_once = false;
};

TEST_F(LateVotes, WithoutABallotHoldNoRoundUp) {
  start(Seconds(8));
  for (int i = 0; i < 6; ++i) {
    round();
    EXPECT_EQ(empty_vote(next - 1), VoteReply::LATE);
    EXPECT_EQ(closed_at_once, i >= 3) << i;
  }
}

TEST_F(LateVotes, OfDamagedBallotsHoldNoRoundUp) {
  start(Seconds(8));
  for (int i = 0; i < 6; ++i) {
    round();
    std::string frames = ballot_of(rig->run(), {.number = 1, .round = next - 1}, Rig::all_positive);
    frames.back() = static_cast<char>(frames.back() + 1);
    EXPECT_EQ(rig->vote({.number = 1, .round = next - 1}, 0, frames).status(), VoteReply::LATE);
    EXPECT_EQ(closed_at_once, i >= 3) << i;
  }
}

TEST_F(LateVotes, OfOlderRoundsHoldNoRoundUp) {
  start(Seconds(8));
  for (int i = 0; i < 6; ++i) {
    round();
    if (i == 0) continue;
    EXPECT_EQ(rig->vote({.number = 1, .round = next - 2}, 0).status(), VoteReply::LATE);
    EXPECT_EQ(closed_at_once, i >= 3) << i;
  }
}

TEST_F(LateVotes, WithABallotAreWaitedForAgain) {
  start(Seconds(8));
  for (int i = 0; i < 6; ++i) {
    round();
    EXPECT_EQ(rig->vote({.number = 1, .round = next - 1}, 0).status(), VoteReply::LATE);
    EXPECT_FALSE(closed_at_once) << i;
  }
  EXPECT_EQ(rig->status().workers[1].late, 6U);
}

TEST_F(LateVotes, WithoutABallotDoNotMakeTheGraceWindowLonger) {
  start({});
  for (int i = 0; i < 8; ++i) {
    round();
    rig->pass(4);
    empty_vote(next - 1);
  }
  EXPECT_EQ(rig->seen.rounds.back().grace, rig->options().quorum.least_grace);
}

// It fetches the open round's record, computes while ten rounds close, and votes on that round.
TEST_F(LateVotes, OfASlowWorkerAreAWarningWithBothTimes) {
  start({});
  const auto slow = [&](int times) {
    for (int i = 0; i < times; ++i) {
      const std::int64_t at = next;
      for (int k = 0; k < 10; ++k) round(), rig->pass(0.5);
      EXPECT_EQ(rig->vote({.number = 1, .round = at}, 0).status(), VoteReply::LATE);
    }
  };
  const auto warnings = [&] {
    return std::ranges::count_if(rig->seen.log, [](const std::string& line) {
      return line.starts_with("warning worker bob: 3 of the last 3 ballots were not counted") &&
             line.find(" s for a ballot, a round takes ") != std::string::npos &&
             line.find("--min-workers to 2") != std::string::npos;
    });
  };
  slow(2);
  EXPECT_EQ(warnings(), 0);
  EXPECT_EQ(rig->status().workers[1].warning, "");
  slow(2);
  EXPECT_EQ(warnings(), 1) << "once";
  EXPECT_TRUE(has(rig->status().workers[1].warning, "4 of the last 4 ballots"));
  const auto counted = [&](int times) {
    for (int i = 0; i < times; ++i) {
      rig->vote({.number = 1, .round = next}, replica->hash());
      round();
    }
  };
  counted(6);
  EXPECT_EQ(rig->status().workers[1].warning, "") << "two of eight";
  slow(3);
  EXPECT_EQ(warnings(), 1) << "not again before eight in a row were counted";
}

// Two ballots of three are lost, and never three in a row.
TEST_F(LateVotes, OfAWorkerThatIsCountedNowAndThenAreAWarning) {
  start(Seconds(0));
  for (int i = 0; i < 4; ++i) {
    if (i % 3 == 2) rig->vote({.number = 1, .round = next}, replica->hash());
    round();
    if (i % 3 != 2) rig->vote({.number = 1, .round = next - 1}, 0);
  }
  EXPECT_EQ(std::ranges::count_if(rig->seen.log,
                                  [](const std::string& line) {
                                    return line.starts_with("warning worker bob: 3 of the last 4 ");
                                  }),
            1);
  EXPECT_TRUE(has(rig->status().workers[1].warning, "3 of the last 4 ballots"));
}

TEST_F(LateVotes, WithABallotMakeTheGraceWindowLonger) {
  start({});
  for (int i = 0; i < 8; ++i) {
    round();
    rig->pass(4);
    rig->vote({.number = 1, .round = next - 1}, 0);
  }
  EXPECT_GT(rig->seen.rounds.back().grace, Seconds(4));
}

}  // namespace
}  // namespace pride::coord::test
