// thread_comm: the transport contract, and further promises of a world of threads.
// SPDX-License-Identifier: Apache-2.0
#include "pride/comm/thread_comm.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "comm/contract.h"
#include "pride/error.h"
#include "support/texts.h"

namespace pride {
namespace {

using contract::Check;
using contract::error_of;
using contract::expect_contains;
using contract::Message;

class ThreadContract : public testing::TestWithParam<std::tuple<Check, int>> {};

TEST_P(ThreadContract, Holds) {
  const auto& [check, world] = GetParam();
  std::atomic<int> ran{0};
  run_world(world, [&, run = check.run](Communicator& comm) {
    EXPECT_EQ(comm.transport(), "threads");
    comm.set_timeout(std::chrono::seconds(100));
    run(comm);
    ++ran;
  });
  EXPECT_EQ(ran, world);
}

INSTANTIATE_TEST_SUITE_P(All, ThreadContract,
                         testing::Combine(testing::ValuesIn(contract::kChecks),
                                          testing::Values(1, 2, 3, 4, 7, 8)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + "_N" +
                                  std::to_string(std::get<1>(info.param));
                         });

std::string error_of_world(int size, const std::function<void(Communicator&)>& body) {
  return texts::error_of<std::exception>([&] { run_world(size, body); });
}

TEST(RunWorld, RefusesSizesOutOfRange) {
  EXPECT_THROW(run_world(0, [](Communicator&) {}), InvalidArgument);
  EXPECT_THROW(run_world(1025, [](Communicator&) {}), InvalidArgument);
  EXPECT_THROW(make_thread_world(-1), InvalidArgument);
}

TEST(RunWorld, GivesEachRankItsOwnEnd) {
  std::vector<std::atomic<int>> seen(32);
  run_world(32, [&](Communicator& comm) {
    EXPECT_EQ(comm.size(), 32);
    ++seen[comm.rank()];
  });
  for (const auto& count : seen) EXPECT_EQ(count, 1);
}

TEST(RunWorld, PrefersARanksOwnErrorToThoseItCaused) {
  for (int round = 0; round < 20; ++round) {
    const auto body = [](Communicator& comm) {
      comm.set_timeout(std::chrono::seconds(60));
      if (comm.rank() == 2) throw std::out_of_range("sample 7");
      comm.barrier();
    };
    EXPECT_THROW(run_world(4, body), std::out_of_range);
  }
}

TEST(RunWorld, PrefersTheFirstOfSeveralCommErrors) {
  for (int round = 0; round < 20; ++round) {
    const auto text = error_of_world(4, [](Communicator& comm) {
      comm.set_timeout(std::chrono::seconds(60));
      if (comm.rank() == 3) throw CommError("cable cut");
      comm.barrier();
    });
    EXPECT_EQ(text, "cable cut");
  }
}

TEST(RunWorld, SendsTheReasonToTheOthers) {
  std::string seen[3];
  error_of_world(3, [&](Communicator& comm) {
    comm.set_timeout(std::chrono::seconds(60));
    if (comm.rank() == 0) throw std::runtime_error("out of images");
    seen[comm.rank()] = error_of(comm, [&] { comm.barrier(); });
  });
  expect_contains(seen[1], "rank 0: out of images");
  expect_contains(seen[2], "rank 0: out of images");
}

TEST(RunWorld, PassesOnExceptionsOfAnyType) {
  EXPECT_THROW(run_world(3,
                         [](Communicator& comm) {
                           if (comm.rank() == 1) throw 17;
                           comm.barrier();
                         }),
               int);
}

TEST(ThreadComm, ReportsARankThatHasLeft) {
  const auto before = std::chrono::steady_clock::now();
  const auto text = error_of_world(4, [](Communicator& comm) {
    comm.set_timeout(std::chrono::seconds(100));
    if (comm.rank() == 1) return;
    comm.barrier();
  });
  expect_contains(text, "rank 1 has left");
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(50));
}

TEST(ThreadComm, FailsAReceiveThatWasPendingWhenTheSenderLeft) {
  std::atomic<bool> pending{false};
  const auto text = error_of_world(2, [&](Communicator& comm) {
    if (comm.rank() == 1) {
      while (!pending) std::this_thread::yield();
      return;
    }
    Message bytes(10);
    Ticket ticket = comm.start_recv(1, 0, bytes);
    pending = true;
    comm.wait(ticket);
  });
  expect_contains(text, "receive of 10 bytes from rank 1 (tag 0): rank 1 has left");
}

// The buffer of a send that is never awaited is freed before the communicator: fail() makes that
// safe.
TEST(ThreadComm, GivesUpWhatIsPendingWhenARankThrows) {
  for (int round = 0; round < 50; ++round) {
    const auto text = error_of_world(2, [](Communicator& comm) {
      Message bytes(1 << 20);
      if (comm.rank() == 0) {
        comm.start_send(1, 0, bytes);
        comm.fail("changed my mind");
        throw std::runtime_error("changed my mind");
      }
      Ticket ticket = comm.start_recv(0, 0, bytes);
      comm.wait(ticket);
      comm.barrier();
    });
    EXPECT_EQ(text, "changed my mind");
  }
}

// The formula of docs/transports.md, for values of one byte.
TEST(ThreadComm, CountsANativeSumAsItsMessages) {
  run_world(4, [](Communicator& comm) {
    std::vector<std::int8_t> values(1000);
    comm.native_sum(values);
    const Traffic traffic = comm.traffic();
    EXPECT_EQ(traffic.messages_sent, 9u);
    EXPECT_EQ(traffic.messages_received, 9u);
    EXPECT_EQ(traffic.bytes_sent, 1500u + 24u);
    EXPECT_EQ(traffic.bytes_received, 1500u + 24u);
  });
}

TEST(ThreadComm, NoticesAStaleTicket) {
  run_world(2, [](Communicator& comm) {
    const Message out(8);
    Message in(8);
    Ticket tickets[] = {comm.start_recv(1 - comm.rank(), 0, in),
                        comm.start_send(1 - comm.rank(), 0, out)};
    Ticket copy = tickets[0];
    comm.wait_all(tickets);
    comm.barrier();
    EXPECT_THROW(comm.wait(copy), InvalidArgument);
  });
}

TEST(ThreadComm, EndsOfAWorldMayOutliveEachOther) {
  auto ends = make_thread_world(3);
  auto alone = ends[0]->rank() == 0 ? std::move(ends[0]) : nullptr;
  ends.clear();
  Message bytes(1);
  Ticket ticket = alone->start_recv(2, 0, bytes);
  expect_contains(error_of(*alone, [&] { alone->wait(ticket); }), "rank 2 has left");
}

// Many more ranks than cores, several communicators at once, messages of all sizes.
TEST(ThreadComm, StandsManyRanksAndGroups) {
  run_world(32, [](Communicator& comm) {
    const auto group = comm.split(comm.rank() % 5, comm.rank());
    for (const std::size_t size : {1, 511, 513, 20'000}) {
      for (Communicator* c : {&comm, group.get()}) {
        const Message mine = contract::message(c->rank(), 0, size);
        Message all(size * c->size());
        c->all_gather(mine, all);
        for (int i = 0; i < c->size(); ++i) {
          contract::expect_message(*c, std::span(all).subspan(size * i, size), i, 0);
        }
      }
    }
  });
}

// N^2 messages and N^2 queues are inherent; when each rank that left visited all queues, this took
// minutes.
TEST(ThreadComm, ServesHundredsOfRanks) {
  run_world(400, [](Communicator& comm) {
    const auto copy = comm.duplicate();
    const Message mine = contract::message(comm.rank(), 0, 16);
    Message all(mine.size() * comm.size());
    for (Communicator* c : {&comm, copy.get()}) {
      c->all_gather(mine, all);
      contract::expect_message(*c, std::span(all).subspan(16 * 399, 16), 399, 0);
      Message back(all.size());
      c->all_to_all(all, back);
    }
  });
}

// A rank that leaves fails the operations that wait for it, and no others of the same pair of
// ranks.
TEST(ThreadComm, LeavesTheSendsOfOthersToOthersAlone) {
  auto ends = make_thread_world(3);
  Message out(8), in(8), at_2(8), lost(8);
  Ticket waits = ends[0]->start_recv(2, 0, in);
  Ticket dead = ends[0]->start_recv(1, 0, lost);
  Ticket sent = ends[0]->start_send(2, 1, out);
  ends[1].reset();
  Ticket tickets[] = {ends[2]->start_recv(0, 1, at_2), ends[2]->start_send(0, 0, out)};
  ends[2]->wait_all(tickets);
  ends[0]->wait(waits);
  ends[0]->wait(sent);
  expect_contains(error_of(*ends[0], [&] { ends[0]->wait(dead); }), "rank 1 has left");
}

}  // namespace
}  // namespace pride
