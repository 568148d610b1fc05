// Disagreement, stalls and failures on every transport: all ranks throw, none hangs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/contract_data.h"
#include "pride/error.h"
#include "support/faulty_comm.h"

namespace pride::contract {

using std::chrono::milliseconds;
using std::chrono::seconds;

// The text of the CommError that the call throws; a failed expectation if it throws none.
template <typename Call>
std::string error_of(const Communicator& comm, Call&& call) {
  try {
    call();
  } catch (const CommError& e) {
    return e.what();
  }
  ADD_FAILURE() << "rank " << comm.rank() << " of " << comm.size() << ": no CommError";
  return {};
}

inline void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
}

// Sends and receives nothing, but keeps polling, as a rank does whose peers have failed.
inline void look_until_error(Communicator& comm) {
  const auto enough = std::chrono::steady_clock::now() + seconds(60);
  while (std::chrono::steady_clock::now() < enough) {
    comm.all_to_all_v({}, {});
    std::this_thread::sleep_for(milliseconds(1));
  }
}

// For ranks whose own part succeeded: the next calls must throw the others' error.
inline void meet_until_error(Communicator& comm) {
  for (int round = 0; round < 1000; ++round) comm.barrier();
}

// The last rank sends messages of `sent` bytes where all others expect `expected`.
inline void expect_mismatch(Communicator& comm, std::size_t expected, std::size_t sent) {
  if (comm.size() == 1) return;
  comm.set_timeout(seconds(60));
  const std::size_t mine = comm.rank() == comm.size() - 1 ? sent : expected;
  const Message out(mine);
  std::vector<Message> in(comm.size(), Message(expected));
  std::vector<Outgoing> send;
  std::vector<Incoming> recv;
  for (int i = 0; i < comm.size(); ++i) {
    if (i != comm.rank()) send.push_back({i, out});
    if (i != comm.rank()) recv.push_back({i, in[i]});
  }
  const auto text = error_of(comm, [&] {
    comm.all_to_all_v(send, recv);
    meet_until_error(comm);
  });
  expect_contains(text, "sizes differ");
  expect_contains(text, concat(expected, " bytes"));
  EXPECT_EQ(text.find("deadline"), std::string::npos) << text;
  error_of(comm, [&] { comm.barrier(); });
}

inline void longer_message_fails_all_ranks(Communicator& comm) { expect_mismatch(comm, 100, 101); }

inline void shorter_message_fails_all_ranks(Communicator& comm) { expect_mismatch(comm, 100, 0); }

// Around the small chunk: a chunk more, a chunk less, and one that has just become full.
inline void large_mismatch_fails_all_ranks(Communicator& comm) {
  expect_mismatch(comm, 100 * kSmallChunk, 101 * kSmallChunk);
}

inline void large_shorter_message_fails_all_ranks(Communicator& comm) {
  expect_mismatch(comm, 101 * kSmallChunk, 100 * kSmallChunk);
}

inline void message_longer_than_nothing_fails_all_ranks(Communicator& comm) {
  expect_mismatch(comm, 0, 5 * kSmallChunk);
}

template <typename T>
void native_sum_of_other_size_fails_all_ranks(Communicator& comm) {
  if (comm.size() == 1) return;
  std::vector<T> values(comm.rank() == 0 ? 1001 : 1000);
  const auto text = error_of(comm, [&] { comm.native_sum(values); });
  expect_contains(text, "1000");
  expect_contains(text, "1001");
}

// Types are compared like sizes: ranks that disagree never add each other's bytes.
inline void native_sum_of_other_type_fails_all_ranks(Communicator& comm) {
  if (comm.size() == 1) return;
  std::vector<std::int32_t> integers(100, 1);
  std::vector<float> floats(100, 1.0f);
  const auto text = error_of(
      comm, [&] { comm.rank() == 0 ? comm.native_sum(integers) : comm.native_sum(floats); });
  expect_contains(text, "native_sum");
  expect_contains(text, "expected 100 coordinates of ");
  expect_contains(text, "float32");
  expect_contains(text, "int32");
}

// Runs an action between the meeting of a native sum, after which all ranks have joined, and the
// transport's own sum.
class BeforeTheSum final : public ForwardingCommunicator {
 public:
  BeforeTheSum(std::unique_ptr<Communicator> inner, std::function<void()> before)
      : ForwardingCommunicator(std::move(inner)), before_(std::move(before)) {}

 protected:
  void do_all_to_all_v(int tag, std::span<const Outgoing> send, std::span<const Incoming> recv,
                       Deadline deadline) override {
    pass_on_all_to_all_v(tag, send, recv, deadline);
  }
  void do_all_gather_v(int tag, std::span<const std::span<const std::byte>> mine,
                       std::span<const Incoming> all, Deadline deadline) override {
    pass_on_all_gather_v(tag, mine, all, deadline);
  }
  bool do_native_sum(SumType type, std::span<std::byte> values) override {
    before_();
    return ForwardingCommunicator::do_native_sum(type, values);
  }

 private:
  std::function<void()> before_;
};

// In several chunks where chunks are small, in one where they are not.
inline std::string error_of_sum(Communicator& comm, const std::function<void()>& before_the_last) {
  const bool last = comm.rank() == comm.size() - 1;
  BeforeTheSum sum(comm.duplicate(), [&] {
    if (last) before_the_last();
  });
  std::vector<float> values(3 * kSmallChunk);
  return error_of(comm, [&] { sum.native_sum(values); });
}

inline void rank_that_fails_within_a_native_sum_fails_all_ranks(Communicator& comm) {
  if (comm.size() == 1) return;
  comm.set_timeout(seconds(60));
  const auto begun = std::chrono::steady_clock::now();
  const auto text = error_of_sum(comm, [] { throw CommError("out of paper"); });
  const int last = comm.size() - 1;
  expect_contains(text, comm.rank() == last ? "native_sum: rank " : "native_sum");
  if (comm.rank() != last) expect_contains(text, concat("rank ", last, ": native_sum"));
  expect_contains(text, "out of paper");
  EXPECT_LT(std::chrono::steady_clock::now() - begun, seconds(30)) << "only the deadline helped";
}

inline void rank_that_stalls_within_a_native_sum_fails_all_ranks(Communicator& comm) {
  if (comm.size() == 1) return;
  comm.set_timeout(milliseconds(200));
  const auto text = error_of_sum(comm, [&] { look_until_error(comm); });
  expect_contains(text, "native_sum");
  expect_contains(text, "deadline");
}

inline void stalled_rank_fails_all_ranks(Communicator& comm) {
  if (comm.size() == 1) return;
  comm.set_timeout(milliseconds(200));
  const bool stalls = comm.rank() == comm.size() - 1;
  const auto text = error_of(comm, [&] { stalls ? look_until_error(comm) : comm.barrier(); });
  expect_contains(text, "deadline");
  expect_contains(error_of(comm, [&] { comm.barrier(); }), "deadline");
}

inline void error_names_scope_call_ranks_and_bytes(Communicator& comm) {
  if (comm.size() == 1) return;
  comm.set_timeout(milliseconds(200));
  const auto text = error_of(comm, [&] {
    if (comm.rank() != 0) return look_until_error(comm);
    const Communicator::Scope outer(comm, "sign_vote");
    const Communicator::Scope inner(comm, "bucket 3");
    Message bytes(123);
    Ticket ticket = comm.start_recv(1, 42, bytes);
    comm.wait(ticket);
  });
  expect_contains(text, "sign_vote, bucket 3: wait: ");
  expect_contains(text, "receive of 123 bytes from rank 1 (tag 42)");
  expect_contains(text, "deadline");
  expect_contains(text, concat("rank ", comm.rank(), " of ", comm.size()));
  if (comm.rank() != 0) expect_contains(text, "rank 0: sign_vote");
  // a Scope that has ended is named no more, except as the reason
  expect_contains(error_of(comm, [&] { comm.barrier(); }).substr(0, 9), "barrier: ");
}

inline void fail_reaches_waiters_duplicates_and_splits(Communicator& comm) {
  if (comm.size() == 1) return;
  comm.set_timeout(seconds(60));
  const int last = comm.size() - 1;
  const auto second = comm.duplicate();
  const auto group = comm.split(comm.rank() == last ? 1 : 0, 0);
  const auto text = error_of(comm, [&] {
    // the last rank fails the world once every rank has left the split
    Message ready(1);
    if (comm.rank() != last) comm.start_send(last, 2, ready);
    for (int i = 0; comm.rank() == last && i < last; ++i) {
      Ticket ticket = comm.start_recv(i, 2, ready);
      comm.wait(ticket);
    }
    if (comm.rank() == last) comm.fail("disk full");
    Message bytes(5000);
    Ticket ticket = comm.start_recv(comm.rank() == last ? 0 : last, 1, bytes);
    comm.wait(ticket);
  });
  const auto reason = concat("rank ", last, ": disk full");
  expect_contains(text, reason);
  comm.fail("too late to count");
  expect_contains(error_of(comm, [&] { second->barrier(); }), reason);
  expect_contains(error_of(comm, [&] { group->barrier(); }), reason);
  expect_contains(error_of(comm, [&] { comm.barrier(); }), reason);
}

inline void fail_of_a_split_names_the_first_worlds_rank(Communicator& comm) {
  comm.set_timeout(seconds(60));
  std::unique_ptr<Communicator> reversed;
  // a rank that is still in the split when rank 0 fails the world throws there
  const auto text = error_of(comm, [&] {
    reversed = comm.split(0, -comm.rank());
    EXPECT_EQ(reversed->rank(), comm.size() - 1 - comm.rank());
    if (comm.rank() == 0) {
      const Communicator::Scope scope(*reversed, "upper level");
      reversed->fail("no more");
    }
    meet_until_error(comm);
  });
  expect_contains(text, "rank 0: upper level: no more");
}

inline void every_call_throws_after_fail(Communicator& comm) {
  comm.set_timeout(seconds(60));
  comm.fail("on purpose");
  const int next = (comm.rank() + 1) % comm.size();
  Message bytes(comm.size()), other(bytes.size());
  std::vector<float> values(3);
  std::vector<std::int8_t> integers(3);
  const std::vector<std::function<void()>> calls = {
      [&] { comm.all_to_all(bytes, other); },
      [&] { comm.all_gather(std::span(bytes).first(1), other); },
      [&] { comm.broadcast(bytes, 0); },
      [&] { comm.barrier(); },
      [&] { comm.native_sum(values); },
      [&] { comm.native_sum(integers); },
      [&] { comm.duplicate(); },
      [&] { comm.split(0, 0); },
      [&] {
        if (comm.size() > 1)
          comm.start_send(next, 0, bytes);
        else
          comm.barrier();
      },
      [&] {
        if (comm.size() > 1)
          comm.start_recv(next, 0, bytes);
        else
          comm.barrier();
      },
  };
  for (const auto& call : calls) expect_contains(error_of(comm, call), ": on purpose");
  EXPECT_EQ(comm.traffic().messages_sent, 0u);
}

// Rank 0 fails the world in the middle of large messages and frees their buffers. Memory checkers
// detect it if the transport touches them afterwards.
inline void buffers_are_free_after_fail(Communicator& comm) {
  if (comm.size() == 1) return;
  comm.set_timeout(seconds(60));
  constexpr std::size_t kSize = std::size_t{1} << 20;
  if (comm.rank() == 0) {
    auto out = std::make_unique<Message>(kSize), in = std::make_unique<Message>(kSize);
    Ticket tickets[] = {comm.start_recv(1, 4, *in), comm.start_send(1, 4, *out)};
    comm.fail("enough");
    out.reset();
    in.reset();
    error_of(comm, [&] { comm.wait_all(tickets); });
    return;
  }
  const auto text = error_of(comm, [&] {
    if (comm.rank() == 1) {
      Message out(kSize), in(kSize);
      Ticket tickets[] = {comm.start_recv(0, 4, in), comm.start_send(0, 4, out)};
      comm.wait_all(tickets);
    }
    meet_until_error(comm);
  });
  expect_contains(text, "rank 0: enough");
}

}  // namespace pride::contract
