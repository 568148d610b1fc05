// Reports on network interfaces. The oracle is the text, for made-up machines.
// SPDX-License-Identifier: Apache-2.0
#include "pride/comm/network.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "pride/comm/thread_comm.h"

namespace pride::network_test {
namespace {

using Texts = std::vector<std::string>;

Interface eth(const std::string& name, int host, std::int64_t mbit, int net = 0) {
  return {.name = name,
          .address = "10.0." + std::to_string(net) + "." + std::to_string(host),
          .network = "net" + std::to_string(net),
          .mbit = mbit,
          .kind = "wired"};
}

const Interface kLoopback = {
    .name = "lo", .address = "127.0.0.1", .network = "7f", .mbit = 0, .kind = "loopback"};
const Interface kBridge = {.name = "docker0",
                           .address = "172.17.0.1",
                           .network = "ac11",
                           .mbit = 10000,
                           .kind = "virtual"};

std::vector<RankNetwork> two(const std::string& first, const std::vector<Interface>& of_first,
                             const std::string& second, const std::vector<Interface>& of_second) {
  return {{"a", first, of_first}, {"b", second, of_second}};
}

TEST(Network, ALineNamesInterfaceAddressAndSpeed) {
  const auto alike = network_report(two("eth0", {kLoopback, eth("eth0", 1, 1000), kBridge},
                                        "10.0.0.2", {kLoopback, eth("eth0", 2, 1000), kBridge}));
  EXPECT_EQ(alike.line, "network: ranks 0, 1: eth0 (10.0.0.1, 1000 Mbit/s)");
  EXPECT_EQ(alike.warnings, Texts());
  const auto unknown =
      network_report(two("ens1,ens2", {eth("ens1", 1, 0)}, "eno", {eth("eth0", 2, 1000)}));
  EXPECT_EQ(unknown.line, "network: rank 0: ens1 (10.0.0.1, speed unknown); rank 1: unknown");
  EXPECT_EQ(unknown.warnings, Texts());
}

TEST(Network, OneMachineHasNoReport) {
  const std::vector<RankNetwork> ranks(3, {"a", "eth0", {eth("eth0", 1, 10), eth("eth1", 1, 100)}});
  EXPECT_EQ(network_report(ranks).line, "");
  EXPECT_EQ(network_report(ranks).warnings, Texts());
  EXPECT_EQ(network_report(two("", {kLoopback}, "", {kLoopback})).line, "");
  run_world(2, [](Communicator& comm) { EXPECT_EQ(network_report(comm, "lo").line, ""); });
}

TEST(Network, RanksWithOtherSpeedsOrKindsAreWarnedOf) {
  const std::string text =
      "the ranks' network interfaces differ in speed or kind, and all ranks wait for the slowest";
  EXPECT_EQ(
      network_report(two("eth0", {eth("eth0", 1, 1000)}, "eth0", {eth("eth0", 2, 10)})).warnings,
      Texts{text});
  Interface wireless = eth("wlan0", 2, 0);
  wireless.kind = "wireless";
  const auto report = network_report(two("eth0", {eth("eth0", 1, 1000)}, "wlan0", {wireless}));
  EXPECT_EQ(report.warnings, Texts{text});
  EXPECT_EQ(
      report.line,
      "network: rank 0: eth0 (10.0.0.1, 1000 Mbit/s); rank 1: wlan0 (10.0.0.2, wireless, speed "
      "unknown)");
}

TEST(Network, AFasterInterfaceIsNamed) {
  const auto report = network_report(two(
      "eth0", {eth("eth0", 1, 1000), eth("eth1", 1, 10000, 1), eth("eth2", 1, 2500, 2), kBridge},
      "eth0", {eth("eth0", 2, 1000), kBridge}));
  EXPECT_EQ(report.warnings,
            Texts{"rank 0 uses eth0 (10.0.0.1, 1000 Mbit/s); its eth1 (10.0.1.1, 10000 "
                  "Mbit/s) is up and faster"});
}

TEST(Network, AnInterfaceThatOthersCannotReachIsNamed) {
  const auto loopback = network_report(
      two("lo", {kLoopback, eth("eth0", 1, 0)}, "eth0", {kLoopback, eth("eth0", 2, 0)}));
  EXPECT_EQ(loopback.warnings,
            Texts{"rank 0 uses lo (127.0.0.1, loopback, speed unknown), which other "
                  "machines cannot reach"});
  const auto apart = network_report(two("eth0", {eth("eth0", 1, 1000), kBridge}, "eth1",
                                        {eth("eth0", 2, 1000), eth("eth1", 2, 1000, 1), kBridge}));
  EXPECT_EQ(apart.warnings,
            Texts{"rank 1 uses eth1 (10.0.1.2, 1000 Mbit/s); its eth0 (10.0.0.2, 1000 "
                  "Mbit/s) is on the network of the other ranks"});
}

TEST(Network, ThisMachinesInterfacesAreFound) {
  const RankNetwork own = own_network("lo");
  const auto lo = std::ranges::find(own.interfaces, std::string("127.0.0.1"), &Interface::address);
  ASSERT_NE(lo, own.interfaces.end());
  EXPECT_EQ(lo->kind, "loopback");
  EXPECT_EQ(lo->network, "7f000000");
  EXPECT_EQ(lo->mbit, 0);
  EXPECT_GT(own.machine.size(), 36U);  // the name, and the kernel's boot_id
}

}  // namespace
}  // namespace pride::network_test
