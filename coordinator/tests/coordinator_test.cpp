// Calls of workers and their replies: registrations, ballots, waits. The oracle of results is a
// replica that applies records (run_of_signs.h).
// SPDX-License-Identifier: Apache-2.0
#include "coord/coordinator.h"

#include <gtest/gtest.h>

#include "rig.h"

namespace pride::coord::test {
namespace {

TEST(Coordinator, ClosesARoundWhenAllLiveWorkersHaveVotedAndAnswersThemWithItsRecord) {
  Rig rig;
  Replica replica(rig.run());
  for (const char* name : {"ann", "bob", "cy"}) ASSERT_EQ(rig.join(name).refused(), "");
  const auto odd = [](std::size_t i) { return i % 2 == 1; };
  EXPECT_EQ(rig.vote({.number = 0}, replica.hash()).status(), VoteReply::TAKEN);
  const auto early = rig.wait(0, 0);
  EXPECT_EQ(rig.vote({.number = 1}, replica.hash(), odd).status(), VoteReply::TAKEN);
  EXPECT_FALSE(early->has_value());
  EXPECT_TRUE(rig.seen.rounds.empty());
  EXPECT_EQ(rig.vote({.number = 2}, replica.hash(), odd).status(), VoteReply::TAKEN);
  ASSERT_TRUE(early->has_value());
  EXPECT_TRUE((*early)->closed());
  EXPECT_TRUE((*early)->counted());
  EXPECT_EQ((*early)->state().open_round(), 1);

  const std::string record = rig.get(RECORD, 0, 0);
  EXPECT_EQ((*early)->total(), record.size());
  EXPECT_EQ((*early)->hash(), hash_bytes(bytes_of(record)));
  const RoundRecord decoded = replica.apply(bytes_of(record));
  ASSERT_EQ(decoded.voters.size(), 3U);
  EXPECT_EQ(decoded.voters[2].number, 2);
  EXPECT_EQ(replica.params()[1], 1 - kRate);  // all voted +
  EXPECT_EQ(replica.params()[2], 2 + kRate);  // two of three voted -
  EXPECT_EQ(rig.seen.rounds[0].loss, 2.0);
}

TEST(Coordinator, ClosesAtAQuorumAfterTheGraceWindowAndAnswersLateBallotsWithTheRecord) {
  Rig rig(with_quorum({.min_workers = 1, .count = 2, .grace = Seconds(5)}));
  const std::uint64_t hash = Replica(rig.run()).hash();
  for (const char* name : {"ann", "bob", "cy"}) rig.join(name);
  rig.vote({.number = 0}, hash);
  rig.pass(8);
  rig.tick();
  EXPECT_TRUE(rig.seen.rounds.empty());  // no quorum yet
  rig.heartbeat(0, 0), rig.heartbeat(1, 0), rig.heartbeat(2, 0);
  rig.vote({.number = 1}, hash);
  ASSERT_TRUE(rig->next_event());
  EXPECT_EQ(*rig->next_event(), rig.now() + std::chrono::seconds(5));
  rig.pass(4.9);
  rig.tick();
  EXPECT_TRUE(rig.seen.rounds.empty());
  rig.pass(0.1);
  rig.tick();
  ASSERT_EQ(rig.seen.rounds.size(), 1U);
  EXPECT_TRUE(rig.seen.rounds[0].by_quorum);
  EXPECT_EQ(voters(rig.seen), Numbers({0, 1}));
  EXPECT_EQ(rig.seen.rounds[0].missing, Numbers({2}));

  rig.pass(2);
  const VoteReply late = rig.vote({.number = 2}, hash);
  EXPECT_EQ(late.status(), VoteReply::LATE);
  EXPECT_EQ(late.state().open_round(), 1);
  const auto reply = rig.wait(2, 0);
  ASSERT_TRUE(reply->has_value());
  EXPECT_TRUE((*reply)->closed());
  EXPECT_FALSE((*reply)->counted());
  EXPECT_EQ((*reply)->why_not(), "late");
  ASSERT_EQ(rig.seen.late.size(), 1U);  // though Missing, PutChunk and Vote all were late
  EXPECT_DOUBLE_EQ(rig.seen.late[0].after, 7);
  EXPECT_EQ(rig.status().workers[2].late, 1U);
}

TEST(Coordinator, RefusesToNeedMoreWorkersThanItTakes) {
  CoordinatorOptions options = with_quorum({.min_workers = 3});
  options.max_workers = 2;
  EXPECT_THROW(Rig{options}, InvalidArgument);
  options.max_workers = 3;
  EXPECT_NO_THROW(Rig{options});
}

TEST(Coordinator, WaitsAgainForAWorkerThatWasLateOnceItHasTheRecord) {
  Rig rig(with_quorum({.min_workers = 1, .count = 1, .grace = Seconds(5)}));
  Replica replica(rig.run());
  for (const char* name : {"ann", "bob"}) rig.join(name);
  rig.vote({.number = 0}, replica.hash());
  rig.vote({.number = 1}, replica.hash());
  replica.apply(bytes_of(rig.get(RECORD, 0, 0)));
  rig.vote({.number = 0, .round = 1}, replica.hash());
  rig.pass(5);
  rig.tick();
  ASSERT_EQ(rig.seen.rounds.size(), 2U) << "closed at the quorum";
  EXPECT_EQ(rig.vote({.number = 1, .round = 1}, replica.hash()).status(), VoteReply::LATE);
  replica.apply(bytes_of(rig.get(RECORD, 1, 1)));
  rig.vote({.number = 0, .round = 2}, replica.hash());
  EXPECT_EQ(rig.seen.rounds.size(), 2U) << "closed at once, without bob";
  rig.vote({.number = 1, .round = 2}, replica.hash());
  ASSERT_EQ(rig.seen.rounds.size(), 3U);
  EXPECT_EQ(voters(rig.seen), Numbers({0, 1}));
}

TEST(Coordinator, ClosesNoRoundBelowTheQuorumAndSaysThatItWaits) {
  Rig rig(with_quorum({.count = 3, .grace = Seconds(1)}));
  const std::uint64_t hash = Replica(rig.run()).hash();
  for (const char* name : {"ann", "bob"}) rig.join(name);
  rig.vote({.number = 0}, hash), rig.vote({.number = 1}, hash);
  for (int second = 0; second < 70; ++second) {
    rig.pass(1);
    rig.heartbeat(0, 0), rig.heartbeat(1, 0);
    rig.tick();
  }
  EXPECT_TRUE(rig.seen.rounds.empty());
  const std::string waits = "round 0 waits for voters: 2 of 3 are in it, 2 workers are live";
  EXPECT_EQ(std::ranges::count(rig.seen.log, "warning " + waits), 2);  // every minute
  EXPECT_EQ(rig.status().few_voters, waits);
  rig.join("cy");
  rig.vote({.number = 2}, hash);
  EXPECT_EQ(voters(rig.seen), Numbers({0, 1, 2}));
  EXPECT_EQ(rig.status().few_voters, "");
}

TEST(Coordinator, DoesNotWaitForAWorkerThatClaimsARoundItCannotBeAt) {
  Rig rig(with_quorum({.count = 1, .grace = Seconds(5)}));
  Replica replica(rig.run());
  for (const char* name : {"ann", "bob"}) rig.join(name);
  for (int round = 0; round < 2; ++round) {
    rig.heartbeat(1, std::int64_t{1} << 40);
    rig.vote({.number = 0, .round = round}, replica.hash());
    rig.pass(5);
    rig.tick();
    replica.apply(bytes_of(rig.get(RECORD, 0, round)));
  }
  rig.heartbeat(1, std::int64_t{1} << 40);
  rig.vote({.number = 0, .round = 2}, replica.hash());
  EXPECT_EQ(rig.seen.rounds.size(), 3U) << "bob has fetched neither record";
}

TEST(Coordinator, StopsWaitingForAWorkerThatFollowsAndNeverVotes) {
  Rig rig(with_quorum({.count = 1, .grace = Seconds(5)}));
  Replica replica(rig.run());
  for (const char* name : {"ann", "bob"}) rig.join(name);
  for (int round = 0; round < 3; ++round) {
    rig.vote({.number = 0, .round = round}, replica.hash());
    EXPECT_EQ(std::ssize(rig.seen.rounds), round) << "it waits for bob";
    rig.pass(5);
    rig.tick();
    for (const int number : {0, 1}) rig.get(RECORD, number, round);
    replica.apply(bytes_of(rig.get(RECORD, 0, round)));
  }
  EXPECT_EQ(std::ranges::count(rig.seen.log,
                               "warning worker bob is not waited for until it votes: "
                               "no ballot from it in 3 rounds"),
            1);
  rig.vote({.number = 0, .round = 3}, replica.hash());
  EXPECT_EQ(rig.seen.rounds.size(), 4U) << "it does not";
  rig.vote({.number = 1, .round = 3}, replica.hash());  // late, and a ballot
  replica.apply(bytes_of(rig.get(RECORD, 1, 3)));
  rig.vote({.number = 0, .round = 4}, replica.hash());
  EXPECT_EQ(rig.seen.rounds.size(), 4U) << "it waits again";
}

TEST(Coordinator, CountsAWorkerOnceHoweverOftenItVotes) {
  Rig rig(with_quorum({.min_workers = 2}));
  const std::uint64_t hash = Replica(rig.run()).hash();
  rig.join("ann"), rig.join("bob");
  EXPECT_EQ(rig.vote({.number = 0}, hash).status(), VoteReply::TAKEN);
  EXPECT_EQ(rig.vote({.number = 0}, hash).status(), VoteReply::TAKEN);
  const auto other = [](std::size_t) { return false; };
  EXPECT_EQ(rig.vote({.number = 0}, hash, other).status(), VoteReply::TAKEN);
  EXPECT_TRUE(rig.seen.rounds.empty());
  rig.vote({.number = 1}, hash);
  EXPECT_EQ(voters(rig.seen), Numbers({0, 1}));
  // also when the answer was lost, and the round is over
  EXPECT_EQ(rig.vote({.number = 0}, hash).status(), VoteReply::TAKEN);
  EXPECT_TRUE(rig.seen.late.empty());
  EXPECT_EQ(rig.status().ballots_counted, 2U);
}

TEST(Coordinator, TakesTheNewestOfTwoSessionsOfAName) {
  Rig rig(with_quorum({.min_workers = 2}));
  const std::uint64_t hash = Replica(rig.run()).hash();
  rig.join("ann");
  const std::string first = rig.session(0);
  rig.join("ann");
  EXPECT_NE(rig.session(0), first);
  HeartbeatRequest request;
  request.set_session(first);
  EXPECT_TRUE(has(rig->heartbeat(request, {}, rig.now()).refused(), "registered again"));
  EXPECT_EQ(rig.heartbeat(0, 0).refused(), "");
  EXPECT_EQ(rig.vote({.number = 0}, hash).status(), VoteReply::TAKEN);
  EXPECT_EQ(rig.status().workers.size(), 1U);
}

TEST(Coordinator, RefusesAnotherRunWithTheFirstDifference) {
  Rig rig;
  rig.join("ann");
  RegisterRequest request;
  request.set_protocol(kProtocol);
  request.set_name("bob");
  request.set_secret(secret_of("bob"));
  RunDescription other = rig.run();
  other.seed = 6;
  request.set_run(encode_run(other));
  EXPECT_TRUE(has(rig->register_worker(request, {}, rig.now()).refused(),
                  "seed: the run has 5, this worker 6"));
  other.settings = std::string(100'000, '\xff');
  other.seed = 5;
  request.set_run(encode_run(other));
  EXPECT_TRUE(has(rig->register_worker(request, {}, rig.now()).refused(),
                  "settings: the run has a test, this worker ????"));
  EXPECT_LT(rig.seen.refused.back().size(), 600U);
  request.set_run("no run");
  EXPECT_NE(rig->register_worker(request, {}, rig.now()).refused(), "");
  request.set_run(encode_run(rig.run()));
  request.set_protocol(1);
  EXPECT_TRUE(has(rig->register_worker(request, {}, rig.now()).refused(), "protocol 1"));
}

TEST(Coordinator, RefusesAMethodThatItCannotServe) {
  Rig rig({}, run_of_signs(200, "onebit-adam"));
  EXPECT_TRUE(has(rig.join("ann").refused(), "cannot serve"));
  EXPECT_EQ(rig.status().method, "");
}

TEST(Coordinator, TellsThoseWithOtherParametersThanMost) {
  Rig rig;
  const std::uint64_t hash = Replica(rig.run()).hash();
  rig.join("ann"), rig.join("bob"), rig.join("cy");
  rig.vote({.number = 0}, 77);
  const auto reply = rig.wait(0, 0);
  rig.vote({.number = 1}, hash);
  rig.vote({.number = 2}, hash);
  EXPECT_EQ(voters(rig.seen), Numbers({1, 2}));
  ASSERT_TRUE(reply->has_value());
  EXPECT_FALSE((*reply)->counted());
  EXPECT_TRUE(
      has((*reply)->why_not(), "its parameters differ from most workers': hash 000000000000004d"));
}

TEST(Coordinator, TellsThoseWithOtherScalarsWhichOne) {
  Rig rig;
  const std::uint64_t hash = Replica(rig.run()).hash();
  rig.join("ann"), rig.join("bob"), rig.join("cy");
  rig.vote({.number = 0, .lr = 0.5F}, hash);
  const auto reply = rig.wait(0, 0);
  rig.vote({.number = 1}, hash);
  rig.vote({.number = 2}, hash);
  ASSERT_TRUE(reply->has_value());
  EXPECT_EQ((*reply)->why_not(),
            "its scalars differ from most workers': lr of group 0 is 0.5, most have 0.125");
}

TEST(Coordinator, BelievesKeptParametersRatherThanMost) {
  Rig rig;
  const Replica replica(rig.run());
  rig.join("ann"), rig.join("bob"), rig.join("cy");
  ASSERT_EQ(rig.offer(0, 0, replica.params(), replica.hash()).refused(), "");
  rig.vote({.number = 1}, 77);
  rig.vote({.number = 2}, 77);
  rig.vote({.number = 0}, replica.hash());
  EXPECT_EQ(voters(rig.seen), Numbers({0}));
}

TEST(Coordinator, AnswersWaitsAtTheirTimeOutAndAtShutdown) {
  Rig rig(with_quorum({.min_workers = 2}));
  const std::uint64_t hash = Replica(rig.run()).hash();
  rig.join("ann");
  const auto without = rig.wait(0, 0);
  ASSERT_TRUE(without->has_value());  // its ballot is to be sent again
  EXPECT_FALSE((*without)->has_ballot());
  rig.vote({.number = 0}, hash);
  const auto short_one = rig.wait(0, 0, 1000);
  rig.pass(1);
  EXPECT_EQ(*rig->next_event(), rig.now());
  rig.tick();
  ASSERT_TRUE(short_one->has_value());
  EXPECT_FALSE((*short_one)->closed());
  EXPECT_TRUE((*short_one)->has_ballot());
  const auto other = rig.wait(0, 0), again = rig.wait(0, 0);
  EXPECT_TRUE(other->has_value());  // the newest call counts
  rig->shutdown();
  ASSERT_TRUE(again->has_value());
  EXPECT_EQ((*again)->refused(), "the coordinator stops");
}

TEST(Coordinator, DoesNotWaitForWorkersThatAreSilentAbstainOrAreBehind) {
  Rig rig;
  Replica replica(rig.run());
  rig.join("ann"), rig.join("bob");
  rig.vote({.number = 0}, replica.hash());
  const auto abstains = rig.wait(1, 0, 20'000, true);
  ASSERT_EQ(rig.seen.rounds.size(), 1U);
  EXPECT_TRUE(abstains->has_value());
  replica.apply(bytes_of(rig.get(RECORD, 0, 0)));

  rig.vote({.number = 0, .round = 1}, replica.hash());
  EXPECT_EQ(rig.seen.rounds.size(), 1U);
  rig.heartbeat(1, 1);
  EXPECT_EQ(rig.seen.rounds.size(), 1U);
  rig.pass(14);
  rig.heartbeat(0, 1);
  rig.pass(1);
  rig.tick();
  ASSERT_EQ(rig.seen.rounds.size(), 2U);
  EXPECT_EQ(rig.seen.log.back(), "lost 1: no heartbeat");
  replica.apply(bytes_of(rig.get(RECORD, 0, 1)));

  rig.heartbeat(1, 0);  // back, and two rounds behind
  rig.vote({.number = 0, .round = 2}, replica.hash());
  EXPECT_EQ(rig.seen.rounds.size(), 3U);
}

}  // namespace
}  // namespace pride::coord::test
