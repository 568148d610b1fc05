// Ballots that a coordinator refuses, leaves out or weighs. The oracle of results is a replica that
// applies records (run_of_signs.h).
// SPDX-License-Identifier: Apache-2.0
#include "coord/coordinator.h"

#include <gtest/gtest.h>

#include <cstring>

#include "pride/random_bits.h"
#include "rig.h"

namespace pride::coord::test {
namespace {

TEST(Ballots, NamesWorkerAndReasonOfABallotThatIsRefused) {
  Rig rig;
  const std::uint64_t hash = Replica(rig.run()).hash();
  rig.join("ann"), rig.join("bob");
  const VoteReply foreign =
      rig.vote({.number = 1}, hash, ballot_of(rig.run(), {.number = 0}, Rig::all_positive));
  EXPECT_EQ(foreign.status(), VoteReply::REFUSED);
  EXPECT_TRUE(has(foreign.why(), "worker 1"));
  ASSERT_EQ(rig.seen.refused.size(), 1U);
  EXPECT_TRUE(has(rig.seen.refused[0], "Vote 1: ballot of worker 1, round 0"));
  rig.vote({.number = 0}, hash);  // nobody waits for the other any more
  EXPECT_EQ(voters(rig.seen), Numbers({0}));
  EXPECT_EQ(rig.status().workers[1].refused, 1U);
}

TEST(Ballots, RefusesBallotsOfAnotherSizeAndChunksThatAreDamaged) {
  Rig rig;
  rig.join("ann");
  const std::string frames = ballot_of(rig.run(), {.number = 0}, Rig::all_positive);
  EXPECT_TRUE(has(rig.put_all(BALLOT, 0, 0, frames + "more").refused(),
                  concat("those of round 0 have ", frames.size())));
  EXPECT_TRUE(has(rig.put_all(BALLOT, 0, 3, frames).refused(), "round 0 is open"));
  PutChunkRequest request;
  request.set_session(rig.session(0));
  request.set_total(frames.size());
  request.set_data(frames);
  request.set_hash(1);
  EXPECT_TRUE(has(rig->put_chunk(request, {}, rig.now()).refused(), "does not match"));
  VoteRequest vote;
  vote.set_session(rig.session(0));
  vote.set_total(frames.size());
  EXPECT_EQ(rig->vote(vote, {}, rig.now()).status(), VoteReply::INCOMPLETE);
}

TEST(Ballots, LeavesOutTheLastOfAnEvenNumberOfEqualVoters) {
  Rig rig(with_quorum({.odd = true}));
  const std::uint64_t hash = Replica(rig.run()).hash();
  for (const char* name : {"ann", "bob", "cy", "di"}) rig.join(name);
  for (const int number : {3, 1, 0, 2}) {
    rig.pass(1);
    rig.vote({.number = number}, hash);
  }
  EXPECT_EQ(voters(rig.seen), Numbers({0, 1, 3}));
  EXPECT_EQ(rig.seen.rounds[0].left_out, Numbers({2}));
  EXPECT_TRUE(has((*rig.wait(2, 0))->why_not(), "even number"));
}

TEST(Ballots, CountsWeightsThatWorkersAskForWithinTheBound) {
  CoordinatorOptions options;
  options.weighting = Weighting::kGiven;
  options.most_weight = 10;
  Rig rig(options);
  Replica replica(rig.run());
  EXPECT_TRUE(has(rig.join("eve", 11).refused(), "from 1 to 10"));
  rig.join("ann", 6), rig.join("bob", 2), rig.join("cy", 2);
  const auto minus = [](std::size_t) { return false; };
  rig.vote({.number = 0, .weight = 6}, replica.hash());
  rig.vote({.number = 1, .weight = 2}, replica.hash(), minus);
  EXPECT_EQ(rig.vote({.number = 2, .weight = 2}, replica.hash(), minus).status(), VoteReply::TAKEN);
  const RoundRecord record = replica.apply(bytes_of(rig.get(RECORD, 0, 0)));
  EXPECT_EQ(record.voters[0].weight, 3);  // over the common divisor
  EXPECT_EQ(record.voters[1].weight, 1);
  EXPECT_EQ(replica.params()[0], -kRate);
}

TEST(Ballots, LeavesOutAWorkerWhoseSignsAreWrong) {
  CoordinatorOptions options;
  options.weighting = Weighting::kLearned;
  Rig rig(options);
  Replica replica(rig.run());
  for (const char* name : {"ann", "bob", "cy", "eve"}) rig.join(name);
  const auto signs = [](int number, std::int64_t round) {
    return [=](std::size_t i) {
      const bool right = mix64(static_cast<std::uint64_t>(8 * round + number), i) % 10 < 8;
      return right == (number != 3);  // the last one votes for the opposite
    };
  };
  for (std::int64_t round = 0; round < 4; ++round) {
    for (int number = 0; number < 4; ++number) {
      rig.vote({.number = number, .round = round}, replica.hash(), signs(number, round));
    }
    replica.apply(bytes_of(rig.get(RECORD, 0, round)));
  }
  EXPECT_EQ(voters(rig.seen), Numbers({0, 1, 2}));
  EXPECT_EQ(rig.seen.rounds.back().left_out, Numbers({3}));
  EXPECT_TRUE(has((*rig.wait(3, 3))->why_not(), "weight 0"));
  EXPECT_GT(*rig.status().workers[0].agreement, 0.6);
  EXPECT_LT(*rig.status().workers[3].agreement, 0.4);
}

TEST(Ballots, DoesNotWaitForEverForBallotsThatDoNotGoTogether) {
  Rig rig(with_quorum({.min_workers = 2, .most_grace = Seconds(10)}));
  rig.join("ann"), rig.join("bob");
  rig.vote({.number = 0}, 1);
  rig.vote({.number = 1}, 2);
  const auto first = rig.wait(0, 0), second = rig.wait(1, 0);
  rig.pass(10);
  ASSERT_TRUE(rig->next_event());
  EXPECT_LE(*rig->next_event(), rig.now());
  rig.tick();
  EXPECT_FALSE(first->has_value());
  ASSERT_TRUE(second->has_value());
  EXPECT_TRUE(has((*second)->refused(), "its parameters differ from most workers'"));
}

}  // namespace
}  // namespace pride::coord::test
