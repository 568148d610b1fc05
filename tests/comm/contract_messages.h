// Messages, groups, counters and argument checks of every transport.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>

#include "comm/contract_data.h"
#include "pride/error.h"

namespace pride::contract {

// --- Point to point. ----------------------------------------------------------------------------

// Many messages of all sizes around a ring, with one tag; some receives come first, some late.
inline void messages_with_one_tag_keep_their_order(Communicator& comm) {
  if (comm.size() == 1) return;
  const int next = (comm.rank() + 1) % comm.size();
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  constexpr int kMessages = 60;
  std::vector<Message> out, in;
  for (int k = 0; k < kMessages; ++k) {
    out.push_back(message(k, 0, static_cast<std::size_t>(k * k * 7)));
    in.emplace_back(static_cast<std::size_t>(k * k * 7));
  }
  std::vector<Ticket> tickets;
  for (int k = 0; k < kMessages / 2; ++k) tickets.push_back(comm.start_recv(previous, 9, in[k]));
  for (int k = 0; k < kMessages; ++k) tickets.push_back(comm.start_send(next, 9, out[k]));
  for (int k = kMessages / 2; k < kMessages; ++k) {
    tickets.push_back(comm.start_recv(previous, 9, in[k]));
  }
  comm.wait_all(tickets);
  for (int k = 0; k < kMessages; ++k) {
    EXPECT_EQ(tickets[k].id, 0u);
    expect_message(comm, in[k], k, 0);
  }
}

inline void tags_are_separate(Communicator& comm) {
  if (comm.size() == 1) return;
  const int next = (comm.rank() + 1) % comm.size();
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  const Message out_low = message(1, 0, 10'000), out_high = message(2, 0, 10'000);
  Message in_low(out_low.size()), in_high(out_high.size());
  Ticket tickets[] = {comm.start_send(next, 0, out_low), comm.start_send(next, 1023, out_high)};
  Ticket high = comm.start_recv(previous, 1023, in_high);
  Ticket low = comm.start_recv(previous, 0, in_low);
  comm.wait(high);
  comm.wait(low);
  comm.wait_all(tickets);
  expect_message(comm, in_low, 1, 0);
  expect_message(comm, in_high, 2, 0);
}

// All ranks wait for their sends before their receives: legal, as the receives have started.
inline void large_sends_may_be_waited_for_first(Communicator& comm) {
  if (comm.size() == 1) return;
  const int next = (comm.rank() + 1) % comm.size();
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  const Message out = message(comm.rank(), next, std::size_t{2} << 20);
  Message in(out.size());
  Ticket recv = comm.start_recv(previous, 3, in);
  Ticket send = comm.start_send(next, 3, out);
  comm.wait(send);
  comm.wait(recv);
  comm.wait(recv);  // an empty ticket returns at once
  expect_message(comm, in, previous, comm.rank());
}

inline void test_comes_true_without_wait(Communicator& comm) {
  if (comm.size() == 1) return;
  const int next = (comm.rank() + 1) % comm.size();
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  const Message out = message(comm.rank(), next, 100'000);
  Message in(out.size());
  Ticket recv = comm.start_recv(previous, 3, in);
  EXPECT_FALSE(comm.test(recv)) << "before any rank has sent";
  comm.barrier();
  Ticket send = comm.start_send(next, 3, out);
  const auto enough = std::chrono::steady_clock::now() + comm.timeout();
  bool sent = false, received = false;
  while (!(sent && received) && std::chrono::steady_clock::now() < enough) {
    sent = comm.test(send);
    received = comm.test(recv);
    std::this_thread::yield();
  }
  EXPECT_TRUE(sent && received && comm.test(recv)) << "rank " << comm.rank();
  expect_message(comm, in, previous, comm.rank());
}

// --- Groups. ------------------------------------------------------------------------------------

inline void duplicate_has_its_own_messages(Communicator& comm) {
  comm.set_timeout(std::chrono::seconds(77));
  const auto second = comm.duplicate();
  EXPECT_EQ(second->rank(), comm.rank());
  EXPECT_EQ(second->size(), comm.size());
  EXPECT_EQ(second->timeout(), comm.timeout());
  EXPECT_EQ(second->traffic().messages_sent, 0u);
  if (comm.size() == 1) return;
  const int next = (comm.rank() + 1) % comm.size();
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  const Message out_first = message(1, 0, 100), out_second = message(2, 0, 100);
  Message in_first(100), in_second(100);
  Ticket send_first = comm.start_send(next, 5, out_first);
  Ticket send_second = second->start_send(next, 5, out_second);
  Ticket recv_second = second->start_recv(previous, 5, in_second);
  Ticket recv_first = comm.start_recv(previous, 5, in_first);
  second->wait(recv_second);
  comm.wait(recv_first);
  comm.wait(send_first);
  second->wait(send_second);
  expect_message(comm, in_first, 1, 0);
  expect_message(comm, in_second, 2, 0);
}

// REQUIRES of the transport: several threads of a process may communicate at the same time.
inline void duplicate_serves_a_second_thread(Communicator& comm) {
  const auto second = comm.duplicate();
  const auto work = [](Communicator& c) {
    for (int round = 0; round < 20; ++round) {
      const auto all = gather_int(c, c.rank() * 100 + round);
      for (int i = 0; i < c.size(); ++i) EXPECT_EQ(all[i], i * 100 + round);
    }
  };
  std::thread other([&] { work(*second); });
  work(comm);
  other.join();
}

inline void split_orders_by_key_then_rank(Communicator& comm) {
  const int colour = comm.rank() % 2 == 0 ? -3 : 7;
  const auto reversed = comm.split(colour, -comm.rank());
  const int members = (comm.size() + (comm.rank() % 2 == 0 ? 1 : 0)) / 2;
  ASSERT_EQ(reversed->size(), members);
  const auto ranks = gather_int(*reversed, comm.rank());
  for (int i = 0; i < members; ++i) {
    EXPECT_EQ(ranks[i], 2 * (members - 1 - i) + comm.rank() % 2);
  }
  const auto same = comm.split(0, 0)->split(0, 5);
  EXPECT_EQ(same->rank(), comm.rank());
  EXPECT_EQ(same->size(), comm.size());
}

// --- Counters and arguments. --------------------------------------------------------------------

struct Expected {
  std::uint64_t bytes_sent, messages_sent, bytes_received, messages_received;
};

inline void expect_traffic(const Communicator& comm, const Traffic& before, const Expected& more,
                           const char* what) {
  const Traffic now = comm.traffic();
  EXPECT_EQ(now.bytes_sent - before.bytes_sent, more.bytes_sent) << what;
  EXPECT_EQ(now.messages_sent - before.messages_sent, more.messages_sent) << what;
  EXPECT_EQ(now.bytes_received - before.bytes_received, more.bytes_received) << what;
  EXPECT_EQ(now.messages_received - before.messages_received, more.messages_received) << what;
}

// The formulas of docs/transports.md.
inline void traffic_is_counted_exactly(Communicator& comm) {
  const auto n = static_cast<std::uint64_t>(comm.size());
  constexpr std::uint64_t kBytes = 1000;
  Message slices(kBytes * n), all(kBytes * n), mine(kBytes);
  Traffic before = comm.traffic();
  comm.all_to_all(slices, all);
  expect_traffic(comm, before, {(n - 1) * kBytes, n - 1, (n - 1) * kBytes, n - 1}, "all_to_all");

  before = comm.traffic();
  comm.all_gather(mine, all);
  expect_traffic(comm, before, {(n - 1) * kBytes, n - 1, (n - 1) * kBytes, n - 1}, "all_gather");

  before = comm.traffic();
  comm.barrier();
  expect_traffic(comm, before, {0, n - 1, 0, n - 1}, "barrier");

  before = comm.traffic();
  comm.broadcast(mine, 0);
  const std::uint64_t sent = comm.rank() == 0 ? n - 1 : 0, received = comm.rank() == 0 ? 0 : 1;
  expect_traffic(comm, before, {sent * kBytes, sent, received * kBytes, received}, "broadcast");

  const std::uint64_t shard = std::uint64_t{1} << 16, peers = n - 1;
  Message longer(shard * n);
  before = comm.traffic();
  comm.broadcast(longer, 0);
  if (n <= 2) return;
  const std::uint64_t out = comm.rank() == 0 ? 2 * peers : n - 2;
  const std::uint64_t in = comm.rank() == 0 ? 0 : n;
  expect_traffic(comm, before, {out * shard, out, in * shard, in}, "long broadcast");
}

inline void bad_arguments_change_nothing(Communicator& comm) {
  Message bytes(10 * static_cast<std::size_t>(comm.size())), other(bytes.size());
  const int next = (comm.rank() + 1) % comm.size();
  EXPECT_THROW(comm.start_send(comm.rank(), 0, bytes), InvalidArgument);
  EXPECT_THROW(comm.start_recv(comm.size(), 0, bytes), InvalidArgument);
  EXPECT_THROW(comm.start_recv(-1, 0, bytes), InvalidArgument);
  EXPECT_THROW(comm.start_send(next, -1, bytes), InvalidArgument);
  EXPECT_THROW(comm.start_send(next, 1024, bytes), InvalidArgument);
  EXPECT_THROW(comm.all_to_all(bytes, bytes), InvalidArgument);
  EXPECT_THROW(comm.all_to_all(bytes, std::span(other).first(5)), InvalidArgument);
  EXPECT_THROW(comm.all_gather(bytes, std::span(other).first(3)), InvalidArgument);
  const Outgoing to_itself{comm.rank(), bytes};
  const Incoming from_nobody{comm.size(), bytes};
  EXPECT_THROW(comm.all_to_all_v({&to_itself, 1}, {}), InvalidArgument);
  EXPECT_THROW(comm.all_to_all_v({}, {&from_nobody, 1}), InvalidArgument);
  EXPECT_THROW(comm.all_gather_v({}, {&from_nobody, 1}), InvalidArgument);
  EXPECT_THROW(comm.broadcast(bytes, comm.size()), InvalidArgument);
  EXPECT_THROW(comm.set_timeout(std::chrono::milliseconds(0)), InvalidArgument);
  EXPECT_EQ(comm.traffic().messages_sent, 0u);
  comm.barrier();
}

}  // namespace pride::contract
