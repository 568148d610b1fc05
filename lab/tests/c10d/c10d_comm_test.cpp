// c10d_comm: the transport contract between processes, over Gloo, and this transport's own
// promises.
// SPDX-License-Identifier: Apache-2.0
#include "pride/comm/c10d_comm.h"

#include <gtest/gtest.h>
#include <torch/version.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "comm/contract.h"
#include "pride/comm/c10d_env.h"
#include "pride/error.h"

namespace pride {
namespace {

using contract::Check;
using contract::Message;
using std::chrono::milliseconds;
using std::chrono::seconds;

class C10dContract : public testing::TestWithParam<Check> {};

TEST_P(C10dContract, Holds) {
  const auto comm = make_c10d_communicator_from_env(seconds(100));
  EXPECT_EQ(comm->transport(), "c10d");
  EXPECT_EQ(comm->timeout(), seconds(300));
  comm->set_timeout(seconds(100));
  GetParam().run(*comm);
}

INSTANTIATE_TEST_SUITE_P(All, C10dContract, testing::ValuesIn(contract::kChecks),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(C10dComm, RanksAreTheLaunchers) {
  const auto comm = make_c10d_communicator_from_env();
  EXPECT_EQ(comm->rank(), std::atoi(std::getenv("RANK")));
  EXPECT_EQ(comm->size(), std::atoi(std::getenv("WORLD_SIZE")));
  EXPECT_TRUE(launched_by_torchrun());
}

TEST(C10dComm, LargeSendsCompleteBeforeTheirReceiveBegins) {
  const auto comm = make_c10d_communicator_from_env();
  if (comm->size() == 1) return;
  const int next = (comm->rank() + 1) % comm->size();
  const int previous = (comm->rank() + comm->size() - 1) % comm->size();
  const Message out = contract::message(comm->rank(), next, std::size_t{8} << 20);
  Message in(out.size());
  Ticket sent = comm->start_send(next, 3, out);
  comm->wait(sent);
  comm->barrier();
  Ticket received = comm->start_recv(previous, 3, in);
  comm->wait(received);
  contract::expect_message(*comm, in, previous, comm->rank());
}

TEST(C10dComm, ARankThatLeavesIsNamedAtOnce) {
  auto comm = make_c10d_communicator_from_env();
  if (comm->size() == 1) return;
  if (comm->rank() == comm->size() - 1) return comm.reset();
  const auto begun = std::chrono::steady_clock::now();
  const auto text = contract::error_of(*comm, [&] {
    for (;;) comm->barrier();
  });
  contract::expect_contains(text, "has left");
  EXPECT_LT(std::chrono::steady_clock::now() - begun, seconds(20));
}

TEST(C10dComm, FailedWorldsDoNotHarmLaterOnes) {
  for (int round = 0; round < 5; ++round) {
    const auto bad = make_c10d_communicator_from_env();
    contract::fail_reaches_waiters_duplicates_and_splits(*bad);
    const auto good = make_c10d_communicator_from_env();
    contract::gather_int(*good, round);
  }
}

// Rank 1's message is far larger than the buffers between it and rank 0, so its world ends inside.
TEST(C10dComm, AFailureInTheMiddleOfAMessageReachesTheReceiver) {
  const auto comm = make_c10d_communicator_from_env();
  if (comm->size() == 1) return;
  comm->set_timeout(seconds(60));
  Message bytes(comm->rank() < 2 ? std::size_t{256} << 20 : 1);
  const auto begun = std::chrono::steady_clock::now();
  contract::error_of(*comm, [&] {
    if (comm->rank() == 1) {
      Ticket ticket = comm->start_send(0, 1, bytes);
      comm->fail("enough");
      comm->wait(ticket);
    }
    if (comm->rank() == 0) {
      Ticket ticket = comm->start_recv(1, 1, bytes);
      comm->wait(ticket);
    }
    contract::meet_until_error(*comm);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begun, seconds(20));
}

TEST(C10dComm, VariablesThatMakeNoSenseAreMisuse) {
  const std::string rank = std::getenv("RANK");
  for (const char* wrong : {"", "-1", "1e3", "1048577"}) {
    setenv("RANK", wrong, 1);
    EXPECT_THROW(make_c10d_communicator_from_env(), InvalidArgument) << "RANK=" << wrong;
  }
  unsetenv("RANK");
  EXPECT_FALSE(launched_by_torchrun());
  EXPECT_THROW(make_c10d_communicator_from_env(), InvalidArgument);
  setenv("RANK", rank.c_str(), 1);
}

#if TORCH_VERSION_MAJOR < 2
TEST(C10dComm, WorksOverTheCallersProcessGroup) {
  EXPECT_THROW(make_c10d_communicator({}), InvalidArgument);
  const int rank = std::atoi(std::getenv("RANK")), world = std::atoi(std::getenv("WORLD_SIZE"));
  ::c10d::TCPStoreOptions store_options;
  store_options.port = static_cast<std::uint16_t>(std::atoi(std::getenv("MASTER_PORT")));
  store_options.isServer = rank == 0;
  store_options.multiTenant = true;
  const auto store = c10::make_intrusive<::c10d::PrefixStore>(
      "callers", c10::make_intrusive<::c10d::TCPStore>(std::getenv("MASTER_ADDR"), store_options));
  auto options = ::c10d::ProcessGroupGloo::Options::create();
  options->devices.push_back(::c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  const auto group =
      c10::make_intrusive<::c10d::ProcessGroupGloo>(store, rank, world, std::move(options));
  const auto comm = make_c10d_communicator(group);
  EXPECT_EQ(comm->rank(), rank);
  EXPECT_EQ(comm->size(), world);
  contract::all_to_all_moves_slices(*comm);
  group->barrier()->wait();  // collectives of c10d go on working beside it
  contract::all_to_all_moves_slices(*comm);
}
#endif

}  // namespace
}  // namespace pride
