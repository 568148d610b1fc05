// An operator's orders while a coordinator serves: a longer or shorter run, other quorums, an
// ejected worker. Oracle: the replies to workers' calls.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "coord/refusals.h"
#include "rig.h"

namespace pride::coord::test {
namespace {

RunDescription run_of_steps(std::int64_t steps) {
  RunDescription run = run_of_signs();
  run.settings = concat("task=test\nsteps=", steps, "\nlr=1\n");
  return run;
}

// One worker, with the rounds of a replica of its own.
class Operated : public ::testing::Test {
 protected:
  Operated() : rig({}, run_of_steps(3)), x(rig.run()) { rig.join("ann"); }

  void rounds(int n) {
    for (int i = 0; i < n; ++i) {
      const std::int64_t round = rig.status().open_round;
      const VoteReply reply = rig.vote({.number = 0, .round = round}, x.hash());
      ASSERT_EQ(reply.status(), VoteReply::TAKEN) << reply.why();
      x.apply(bytes_of(rig.get(RECORD, 0, round)));
    }
  }
  std::string order(const Orders& orders) { return rig->obey(orders, rig.now()); }
  RunState state() { return rig.heartbeat(0, 0).state(); }

  Rig rig;
  Replica x;
};

TEST_F(Operated, ARunEndsWhereItsWorkersSay) {
  EXPECT_EQ(state().steps(), 3);
  EXPECT_EQ(state().last_step(), 3);
  rounds(3);
  EXPECT_EQ(rig.status().at_end, "the run is at its end (step 3)");
  const VoteReply reply = rig.vote({.number = 0, .round = 3}, x.hash());
  EXPECT_EQ(reply.status(), VoteReply::REFUSED);
  EXPECT_EQ(reply.why(), "the run is at its end (step 3)");
  EXPECT_EQ(rig.join("bob").refused(), "") << "it can have the parameters";
}

TEST_F(Operated, ALongerRunIsKnownFromTheNextRoundOn) {
  EXPECT_EQ(order({.steps = 5}), "");
  EXPECT_EQ(state().steps(), 3) << "rates of the open round are as its workers know them";
  rounds(1);
  EXPECT_EQ(state().steps(), 5);
  rounds(4);
  EXPECT_EQ(rig.status().at_end, "the run is at its end (step 5)");
}

TEST_F(Operated, ARunThatIsAtItsEndGoesOnOnceItIsLonger) {
  rounds(3);
  EXPECT_EQ(order({.steps = 4}), "");
  EXPECT_EQ(rig.status().at_end, "");
  rounds(1);
}

TEST_F(Operated, WorkersOfALongerRunMaySayItsLengthAndNoOther) {
  order({.steps = 5});
  const auto join = [&](const std::string& name, std::int64_t steps) {
    RegisterRequest request;
    request.set_protocol(kProtocol);
    request.set_name(name);
    request.set_secret(secret_of(name));
    request.set_run(encode_run(run_of_steps(steps)));
    return rig->register_worker(request, {}, rig.now()).refused();
  };
  EXPECT_EQ(join("bob", 5), "");
  EXPECT_EQ(join("cem", 3), "");
  EXPECT_TRUE(has(join("dan", 6), "setting steps: the run has 5, this worker 6; a line `steps N`"));
}

TEST_F(Operated, ARunFinishesAfterTheRoundThatIsOrdered) {
  rounds(1);
  EXPECT_TRUE(has(order({.last_round = 0}),
                  "the run would end with round 0, and round 1 is open: `finish 1`"));
  EXPECT_EQ(order({.last_round = 1}), "");
  EXPECT_EQ(rig.status().at_end, "") << "round 1 is its last";
  rounds(1);
  EXPECT_EQ(rig.status().at_end, "the run is at its end (step 2)");
  EXPECT_EQ(state().last_step(), 2);
  EXPECT_EQ(state().steps(), 3) << "rates are as before";
  EXPECT_EQ(order({}), "");
  EXPECT_EQ(rig.status().at_end, "") << "the order was taken back";
}

TEST_F(Operated, ARunIsNotMadeShorterByItsSteps) {
  EXPECT_TRUE(has(order({.steps = 2}), "steps 2: the run has 3"));
  rounds(3);
}

TEST_F(Operated, OrdersHoldAfterARestartFromItsFirstRoundOn) {
  rounds(1);
  rig.restart();
  EXPECT_EQ(order({.steps = 5, .last_round = 3}), "");
  rig.join("ann");
  EXPECT_EQ(state().steps(), 5);
  EXPECT_EQ(state().last_step(), 4);
  rounds(3);
  EXPECT_EQ(rig.status().at_end, "the run is at its end (step 4)");
}

TEST_F(Operated, QuorumsChangeAndComeBack) {
  EXPECT_EQ(order({.quorum = 2}), "");
  rig.vote({.number = 0}, x.hash());
  EXPECT_EQ(rig.seen.rounds.size(), 0U);
  EXPECT_EQ(rig.status().least_voters, 2);
  EXPECT_TRUE(has(order({.min_workers = 5000}), "5000 voters, --max-workers is 1024"));
  EXPECT_EQ(rig.status().least_voters, 2) << "nothing was changed";
  EXPECT_EQ(order({}), "");
  EXPECT_EQ(rig.seen.rounds.size(), 1U) << "one vote is enough again";
}

TEST_F(Operated, AnEjectedWorkerHasNoVoteAndIsNotLetIn) {
  rig.join("bob");
  rig.vote({.number = 1}, x.hash());
  const auto waits = rig.wait(1, 0);
  EXPECT_EQ(order({.ejected = {"bob"}}), "");
  ASSERT_TRUE(waits->has_value());
  EXPECT_EQ(waits->value().refused(), kEjected);
  rounds(1);
  EXPECT_EQ(voters(rig.seen), Numbers{0});
  EXPECT_EQ(rig.join("bob").refused(), kEjected);
  EXPECT_TRUE(has(rig.heartbeat(1, 0).refused(), "register again"));
  EXPECT_EQ(order({}), "");
  EXPECT_EQ(rig.join("bob").refused(), "") << "the order was taken back";
}

TEST_F(Operated, AnEjectedWorkerIsNotWaitedFor) {
  rig.join("bob");
  rig.vote({.number = 0}, x.hash());
  EXPECT_EQ(rig.seen.rounds.size(), 0U);
  order({.ejected = {"bob"}});
  EXPECT_EQ(rig.seen.rounds.size(), 1U);
}

TEST_F(Operated, ARoundWhoseVotersAreEjectedWaitsForNobody) {
  rig.options().quorum.min_workers = 2;
  rig.restart();
  rig.join("ann");
  rig.vote({.number = 0}, x.hash());
  EXPECT_NE(rig.status().few_voters, "");
  EXPECT_EQ(order({.ejected = {"ann"}}), "");
  EXPECT_EQ(rig.status().few_voters, "");
}

}  // namespace
}  // namespace pride::coord::test
