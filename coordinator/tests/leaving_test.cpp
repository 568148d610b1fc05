// A worker that announces its end, and one that is silent.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "rig.h"

namespace pride::coord::test {
namespace {

HeartbeatReply leave(Rig& rig, int number) {
  HeartbeatRequest request;
  request.set_session(rig.session(number));
  request.set_leaves(true);
  return rig->heartbeat(request, {.certificate = "", .address = "192.0.2.1:1000"}, rig.now());
}

TEST(Leaving, IsNoLossAndNobodyWaitsForWhoHasLeft) {
  Rig rig;
  const std::uint64_t hash = Replica(rig.run()).hash();
  rig.join("ann"), rig.join("bob");
  rig.vote({.number = 0}, hash);
  EXPECT_EQ(rig.seen.rounds.size(), 0U) << "bob is waited for";
  EXPECT_EQ(leave(rig, 1).refused(), "");
  EXPECT_EQ(rig.seen.rounds.size(), 1U) << "bob has left";
  rig.pass(60);
  rig.tick();
  EXPECT_EQ(rig.seen.log.back(), "lost 0: no heartbeat");
  EXPECT_EQ(std::ranges::count(rig.seen.log, "left 1"), 1);
  EXPECT_EQ(std::ranges::count(rig.seen.log, "lost 1: no heartbeat"), 0);
}

TEST(Leaving, IsNotUndoneByACallThatWasOnItsWay) {
  Rig rig;
  rig.join("ann");
  HeartbeatRequest late;
  late.set_session(rig.session(0));
  leave(rig, 0);
  EXPECT_NE(
      rig->heartbeat(late, {.certificate = "", .address = "192.0.2.1:1000"}, rig.now()).refused(),
      "");
  EXPECT_FALSE(rig.status().workers[0].live);
}

TEST(Leaving, IsOverWhenItsWorkerComesBack) {
  Rig rig;
  rig.join("ann");
  leave(rig, 0);
  EXPECT_FALSE(rig.status().workers[0].live);
  EXPECT_EQ(rig.join("ann").number(), 0U);
  EXPECT_TRUE(rig.status().workers[0].live);
}

}  // namespace
}  // namespace pride::coord::test
