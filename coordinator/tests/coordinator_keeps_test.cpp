// A coordinator's parameters, journal and shadow, also after a restart.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "coord/coordinator.h"
#include "pride/random_bits.h"
#include "rig.h"

namespace pride::coord::test {
namespace {

TEST(CoordinatorKeeps, GivesParametersOfTheFirstWorkerToTheOthers) {
  Rig rig;
  const Replica replica(rig.run());
  EXPECT_EQ(rig.join("ann").state().parameters_round(), -1);
  rig.join("bob");
  const std::uint64_t bytes = replica.params().size_bytes();
  EXPECT_EQ(rig.missing(PARAMETERS, 0, 0, bytes).chunks_size(), 1);
  EXPECT_TRUE(rig.missing(PARAMETERS, 1, 0, bytes).closed());  // one is at it
  EXPECT_TRUE(has(rig.offer(0, 0, replica.params(), 3).refused(), "hash"));
  EXPECT_EQ(rig.offer(0, 0, replica.params(), replica.hash()).refused(), "");
  const HeartbeatReply state = rig.heartbeat(1, 0);
  EXPECT_EQ(state.state().parameters_round(), 0);
  EXPECT_EQ(state.state().parameters_hash(), replica.hash());
  EXPECT_EQ(state.state().parameters_bytes(), bytes);
  const std::string got = rig.get(PARAMETERS, 1, 0);
  EXPECT_EQ(got, std::string(reinterpret_cast<const char*>(replica.params().data()), bytes));
}

// As a full disk, or a process without descriptors.
TEST(CoordinatorKeeps, GoesOnWhereParametersCannotBeWrittenAndAsksAgain) {
  for (const bool shadow : {false, true}) {
    CoordinatorOptions options;
    options.parameters_every = 2;
    options.shadow = shadow;
    Rig rig(options);
    Replica replica(rig.run());
    rig.join("ann");
    const std::int64_t broken = shadow ? 2 : 0;
    const auto file = parameters_file(rig.folder(), broken);
    std::filesystem::create_directories(file / "in the way");
    EXPECT_EQ(rig.offer(0, 0, replica.params(), replica.hash()).refused(), "");
    for (int round = 0; round < 12; ++round) {
      rig.vote({.number = 0, .round = round}, replica.hash());
      const bool asked = (*rig.wait(0, round))->wants_parameters();
      replica.apply(bytes_of(rig.get(RECORD, 0, round)));
      if (asked) {
        EXPECT_EQ(rig.offer(0, round + 1, replica.params(), replica.hash()).refused(), "");
      }
    }
    EXPECT_EQ(rig.seen.failed, "");
    const auto warned = std::ranges::find_if(
        rig.seen.log, [](const std::string& line) { return line.starts_with("warning "); });
    ASSERT_NE(warned, rig.seen.log.end());
    EXPECT_TRUE(has(*warned, concat("parameters before round ", broken, ": cannot ")));
    EXPECT_GE(rig.status().parameters_round, 8);
  }
}

TEST(CoordinatorKeeps, AsksAVoterForParametersAndKeepsThemOnlyWithTheHashThatMostHad) {
  CoordinatorOptions options;
  options.parameters_every = 2;
  Rig rig(options);
  Replica replica(rig.run());
  rig.join("ann"), rig.join("bob");
  rig.offer(0, 0, replica.params(), replica.hash());
  bool asked = false;
  for (int round = 0; round < 2; ++round) {
    rig.vote({.number = 1, .round = round}, replica.hash());
    const auto reply = rig.wait(1, round);
    rig.pass(1);
    rig.vote({.number = 0, .round = round}, replica.hash());
    replica.apply(bytes_of(rig.get(RECORD, 0, round)));
    asked = (*reply)->wants_parameters();
    EXPECT_EQ(asked, round == 1);
  }
  EXPECT_TRUE(has(rig.offer(0, 2, replica.params(), replica.hash()).refused(),
                  "not requested from this worker"));
  std::vector<float> wrong(replica.params().begin(), replica.params().end());
  wrong[3] += 1;
  const std::uint64_t wrong_hash = param_hash(Layout(rig.run().tensors), wrong);
  EXPECT_EQ(rig.offer(1, 2, wrong, wrong_hash).refused(), "");  // round 2 will tell
  EXPECT_EQ(rig.status().parameters_round, 0);
  rig.vote({.number = 0, .round = 2}, replica.hash());
  rig.vote({.number = 1, .round = 2}, replica.hash());
  EXPECT_EQ(rig.status().parameters_round, 0);
  EXPECT_TRUE(has(rig.seen.refused.back(), "a hash that differs from most"));

  replica.apply(bytes_of(rig.get(RECORD, 0, 2)));
  rig.vote({.number = 0, .round = 3}, replica.hash());
  const auto reply = rig.wait(0, 3);
  rig.vote({.number = 1, .round = 3}, replica.hash());
  ASSERT_TRUE((*reply)->wants_parameters());
  replica.apply(bytes_of(rig.get(RECORD, 0, 3)));
  EXPECT_EQ(rig.offer(0, 4, replica.params(), replica.hash()).refused(), "");
  rig.vote({.number = 0, .round = 4}, replica.hash());
  rig.vote({.number = 1, .round = 4}, replica.hash());
  EXPECT_EQ(rig.status().parameters_round, 4);
}

TEST(CoordinatorKeeps, GoesOnFromItsJournalAndKnowsItsWorkers) {
  Rig rig;
  Replica replica(rig.run());
  rig.join("ann"), rig.join("bob");
  rig.offer(0, 0, replica.params(), replica.hash());
  rig.vote({.number = 0}, replica.hash());
  rig.vote({.number = 1}, replica.hash());
  rig.vote({.number = 0, .round = 1}, replica.hash());  // lost with the process
  rig.restart();
  EXPECT_TRUE(has(rig.heartbeat(0, 1).refused(), "register again"));
  const RegisterReply bob = rig.join("bob");
  EXPECT_EQ(bob.number(), 1U);
  EXPECT_EQ(bob.state().open_round(), 1);
  EXPECT_EQ(bob.state().parameters_round(), 0);
  EXPECT_TRUE((*rig.wait(1, 0))->counted());
  replica.apply(bytes_of(rig.get(RECORD, 1, 0)));
  rig.vote({.number = 1, .round = 1}, replica.hash());
  EXPECT_EQ(rig.seen.rounds.size(), 1U);  // the other is waited for: it voted last time
  rig.join("ann");
  EXPECT_FALSE((*rig.wait(0, 1))->has_ballot());
  rig.vote({.number = 0, .round = 1}, replica.hash());
  EXPECT_EQ(voters(rig.seen), Numbers({0, 1}));
}

TEST(CoordinatorKeeps, KnowsTheParametersByItsShadowAlsoAfterARestart) {
  CoordinatorOptions options;
  options.shadow = true;
  options.parameters_every = 2;
  Rig rig(options);
  Replica replica(rig.run());
  for (const char* name : {"ann", "bob", "cy"}) rig.join(name);
  rig.offer(0, 0, replica.params(), replica.hash());
  const auto round = [&](std::int64_t at) {
    rig.vote({.number = 1, .round = at}, 77);  // two of three are wrong
    rig.vote({.number = 2, .round = at}, 77);
    rig.vote({.number = 0, .round = at}, replica.hash());
    EXPECT_EQ(voters(rig.seen), Numbers({0})) << "round " << at;
    EXPECT_FALSE((*rig.wait(0, at))->wants_parameters());
    replica.apply(bytes_of(rig.get(RECORD, 0, at)));
  };
  round(0), round(1), round(2);
  EXPECT_EQ(rig.status().parameters_round, 2);
  EXPECT_EQ(std::ranges::count(rig.seen.log, "parameters 2 from the shadow"), 1);
  rig.restart();
  for (const char* name : {"ann", "bob", "cy"}) rig.join(name);
  round(3);
  EXPECT_EQ(rig.status().parameters_round, 4);
  const std::string kept = rig.get(PARAMETERS, 1, 4);
  EXPECT_EQ(std::memcmp(kept.data(), replica.params().data(), kept.size()), 0);
}

TEST(CoordinatorKeeps, SaysWhichRecordsItStillHas) {
  CoordinatorOptions options;
  options.retain_all = false;
  options.shadow = true;
  options.parameters_every = 2;
  Rig rig(options);
  Replica replica(rig.run());
  rig.join("ann");
  rig.offer(0, 0, replica.params(), replica.hash());
  for (std::int64_t round = 0; round < 9; ++round) {
    rig.vote({.number = 0, .round = round}, replica.hash());
    replica.apply(bytes_of(rig.get(RECORD, 0, round)));
  }
  const RunState state = rig.heartbeat(0, 9).state();
  EXPECT_EQ(state.first_record(), 6);
  EXPECT_EQ(state.parameters_round(), 8);
  EXPECT_TRUE(has((*rig.wait(0, 5))->refused(), "no longer kept"));
  EXPECT_TRUE((*rig.wait(0, 6))->closed());
  EXPECT_TRUE(has(rig.chunk(RECORD, 0, 5, 0).refused(), "there is no such record: round 5"));
  EXPECT_TRUE(has(rig.chunk(PARAMETERS, 0, 4, 0).refused(), "there is no such file"));
}

TEST(CoordinatorKeeps, ServesNoMoreOnceItsJournalCannotBeWritten) {
  Rig rig({.segment_bytes = 1});  // each record begins a file
  Replica replica(rig.run());
  rig.join("ann");
  rig.vote({.number = 0}, replica.hash());
  replica.apply(bytes_of(rig.get(RECORD, 0, 0)));
  std::filesystem::remove_all(rig.folder());
  rig.vote({.number = 0, .round = 1}, replica.hash());
  EXPECT_TRUE(has(rig.seen.failed, "records-"));
  EXPECT_TRUE(has(rig.heartbeat(0, 0).refused(), "the coordinator failed"));
  EXPECT_NE(rig.status().failed, "");
}

}  // namespace
}  // namespace pride::coord::test
