// Limits of callers, addresses and names: by hand.
// SPDX-License-Identifier: Apache-2.0
#include "coord/rpc/admission.h"

#include <gtest/gtest.h>

#include "coord/rpc/address.h"
#include "pride/error.h"

namespace pride::coord {
namespace {

using namespace std::chrono_literals;

constexpr Admission::Time kStart{};

TEST(Admission, LetsABurstInAndThenSoManyASecond) {
  Admission admission({.per_second = 10, .burst = 3, .at_a_time = 100, .all_at_a_time = 100});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(admission.enter("a", kStart), "");
  EXPECT_NE(admission.enter("a", kStart).find("too many calls: 10 a second"), std::string::npos);
  EXPECT_EQ(admission.enter("b", kStart), "") << "another caller pays for a";
  EXPECT_EQ(admission.enter("a", kStart + 100ms), "");
  EXPECT_NE(admission.enter("a", kStart + 150ms), "");
}

TEST(Admission, CountsCallsAtATimeOfOneAndOfAll) {
  Admission admission({.per_second = 1000, .burst = 1000, .at_a_time = 2, .all_at_a_time = 3});
  EXPECT_EQ(admission.enter("a", kStart), "");
  EXPECT_EQ(admission.enter("a", kStart), "");
  EXPECT_EQ(admission.enter("a", kStart), "too many calls at a time: 2 at most");
  EXPECT_EQ(admission.enter("b", kStart), "");
  EXPECT_EQ(admission.enter("c", kStart), "too many calls of all workers at a time");
  admission.answered("a");
  admission.leave("a");
  EXPECT_EQ(admission.enter("c", kStart), "");
}

TEST(Admission, CountsAnswersThatWereNotReadYetApart) {
  Admission admission({.per_second = 1000, .burst = 1000, .at_a_time = 2, .all_at_a_time = 100});
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(admission.enter("a", kStart), "") << i;
    admission.answered("a");
  }
  EXPECT_NE(admission.enter("a", kStart), "");
  admission.leave("a");
  EXPECT_EQ(admission.enter("a", kStart), "");
}

TEST(Admission, ForgetsCallersWhoAreIdleAndNoOthers) {
  Admission admission({.per_second = 10, .burst = 1, .at_a_time = 1, .all_at_a_time = 1 << 20});
  EXPECT_EQ(admission.enter("busy", kStart), "");
  for (int i = 0; i < 20'000; ++i) {
    const std::string name = std::to_string(i);
    ASSERT_EQ(admission.enter(name, kStart + i * 1ms), "");
    admission.answered(name);
    admission.leave(name);
  }
  EXPECT_EQ(admission.enter("busy", kStart + 20s), "too many calls at a time: 1 at most");
}

TEST(Address, IsTakenApart) {
  EXPECT_EQ(parse_host_port("127.0.0.1:80", "x").host, "127.0.0.1");
  EXPECT_EQ(parse_host_port("[::1]:4770", "x").host, "::1");
  EXPECT_EQ(parse_host_port("[::1]:4770", "x").port, 4770);
  for (const char* bad :
       {"", "host", ":80", "host:", "host:x", "host:70000", "host:-1", "::1:80", "host:8 "}) {
    EXPECT_THROW(parse_host_port(bad, "--listen"), InvalidArgument) << bad;
  }
}

TEST(Address, KnowsWhatOnlyThisMachineReaches) {
  for (const char* mine : {"127.0.0.1", "127.8.9.1", "::1", "localhost"})
    EXPECT_TRUE(is_loopback(mine));
  for (const char* other :
       {"0.0.0.0", "::", "192.168.0.1", "128.0.0.1", "example.org", "127.0.0.1.example.org"}) {
    EXPECT_FALSE(is_loopback(other)) << other;
  }
}

TEST(Address, OfAPeerIsAsPeopleWriteIt) {
  EXPECT_EQ(peer_address("ipv4:192.0.2.1:4711"), "192.0.2.1:4711");
  EXPECT_EQ(peer_address("ipv6:%5B::1%5D:4711"), "[::1]:4711");
}

TEST(WorkerName, IsNoPathAndNoMarkup) {
  EXPECT_NO_THROW(check_worker_name("site-1.lab_A"));
  for (const std::string& bad :
       {std::string(), std::string("../x"), std::string("a/b"), std::string("<b>"),
        std::string(".hidden"), std::string("a b"), std::string(65, 'a')}) {
    EXPECT_THROW(check_worker_name(bad), InvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace pride::coord
