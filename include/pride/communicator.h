// Communicator: moves bytes between the ranks of a world and counts them; independent of methods.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pride/bf16.h"

namespace pride {

// Bytes and messages of the sends and receives this rank has started since the object was created.
// A rank's copy to itself does not count.
struct Traffic {
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t messages_sent = 0;
  std::uint64_t messages_received = 0;

  friend Traffic operator+(const Traffic& a, const Traffic& b) {
    return {a.bytes_sent + b.bytes_sent, a.bytes_received + b.bytes_received,
            a.messages_sent + b.messages_sent, a.messages_received + b.messages_received};
  }
  friend Traffic operator-(const Traffic& a, const Traffic& b) {
    return {a.bytes_sent - b.bytes_sent, a.bytes_received - b.bytes_received,
            a.messages_sent - b.messages_sent, a.messages_received - b.messages_received};
  }
};

// A pending send or receive. Its buffer must live until wait() returns, test() returns true or a
// call throws CommError. If another exception ends the scope of the buffer, call fail() first.
// After a failure MPI may still use buffers of messages in transfer (docs/transports.md).
struct Ticket {
  std::uint64_t id = 0;  // 0: nothing pending
};

// A message of a collective whose sizes differ.
struct Outgoing {
  int to = 0;
  std::span<const std::byte> bytes = {};
};
struct Incoming {
  int from = 0;
  std::span<std::byte> bytes = {};
};

// One rank's end of a world of size() ranks. One thread at a time may use an object; a second
// thread needs a duplicate(). Collectives must be called by all ranks in the same order.
//
// Errors: a size that differs from the peer's, a deadline that passes, or a peer that failed throws
// CommError, which names the operation, this rank, the peer and the bytes. The first rank that
// detects one notifies the others (fail()), so that all of them throw. After a CommError every call
// on this communicator, its duplicates and its splits throws again.
class Communicator {
 public:
  virtual ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  // "threads", "mpi", "c10d", ...
  virtual std::string_view transport() const noexcept = 0;

  // --- Point to point. Messages between two ranks with one tag arrive in the order sent. --------

  // Starts sending `bytes` to `peer`. REQUIRES: 0 <= peer < size(), peer != rank(), 0 <= tag <
  // 1024.
  Ticket start_send(int peer, int tag, std::span<const std::byte> bytes);

  // Starts receiving exactly bytes.size() bytes from `peer`; any other size is a CommError.
  Ticket start_recv(int peer, int tag, std::span<std::byte> bytes);

  // True once the operation is complete (the ticket is then empty). Never blocks.
  bool test(Ticket& ticket);

  // Returns when complete, or throws CommError at the deadline. Empty tickets return at once.
  void wait(Ticket& ticket);
  void wait_all(std::span<Ticket> tickets);

  // --- Collectives. ------------------------------------------------------------------------------

  // Slice j of `send` goes to rank j; slice i of `recv` comes from rank i.
  // REQUIRES: send.size() == recv.size(), a multiple of size(); no overlap.
  void all_to_all(std::span<const std::byte> send, std::span<std::byte> recv);

  // Any messages between any ranks, all in flight at the same time. REQUIRES: no message to or from
  // this rank itself; the lists of two ranks have the messages between them in one order, with
  // equal sizes.
  void all_to_all_v(std::span<const Outgoing> send, std::span<const Incoming> recv);

  // Slice i of `all` becomes rank i's `mine`. REQUIRES: all.size() == size() * mine.size().
  // `mine` may be this rank's slice of `all`.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all);

  // Every message of `mine` goes to every other rank; `all` receives theirs.
  // REQUIRES: as all_to_all_v; every rank sends the same number of messages.
  void all_gather_v(std::span<const std::span<const std::byte>> mine,
                    std::span<const Incoming> all);

  // Every rank ends with the root's bytes; the root sends size() - 1 copies.
  void broadcast(std::span<std::byte> bytes, int root);

  // Returns when all ranks have called it.
  void barrier();

  // Sum by the transport's own all-reduce, in its own order. All ranks get equal bits. Bits of
  // float sums may differ between transports. Sums of integers are exact, so equal on every
  // transport. bfloat16 is added in float32 and rounded after each addition. REQUIRES: no sum of
  // integers, over all or some of the ranks, leaves the type's range.
  void native_sum(std::span<float> values);
  void native_sum(std::span<std::int8_t> values);
  void native_sum(std::span<std::int16_t> values);
  void native_sum(std::span<std::int32_t> values);
  void native_sum(std::span<BFloat16> values);

  // --- Groups, deadlines, failure, counters. -----------------------------------------------------

  // A second communicator over the same ranks, with its own message space. Collective.
  std::unique_ptr<Communicator> duplicate();

  // Ranks that give the same colour form a world, ordered by (key, rank). Collective.
  std::unique_ptr<Communicator> split(int colour, int key);

  // The longest time of one wait; the default is 300 s. REQUIRES: > 0.
  void set_timeout(std::chrono::milliseconds timeout);
  std::chrono::milliseconds timeout() const noexcept { return timeout_; }

  // Fails the world: pending and later calls on all ranks throw CommError with this reason. Not
  // collective. Takes less than a second and never throws. Only the first reason counts.
  void fail(std::string_view reason) noexcept;

  // Bytes and messages of this object (not of its duplicates and splits).
  Traffic traffic() const noexcept { return traffic_; }

  // While it lives, errors of calls name the caller's operation ("sign_vote, bucket 3").
  class Scope {
   public:
    Scope(Communicator& comm, std::string what);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Communicator& comm_;
    std::string outer_;
  };

 protected:
  Communicator(int rank, int size);

  // The transport's interface: messages, or collectives, or both. Sizes are up to 2^63, and
  // arguments are checked already. The text of an exception names the operation; the public call
  // adds scope, name and rank, and then calls do_fail.
  using Deadline = std::chrono::steady_clock::time_point;

  // Messages between two ranks. A transport with collectives only does not override these;
  // start_send() and start_recv() then throw InvalidArgument.
  virtual std::uint64_t do_start_send(int peer, int tag, std::span<const std::byte> bytes);
  virtual std::uint64_t do_start_recv(int peer, int tag, std::span<std::byte> bytes);
  virtual bool do_test(std::uint64_t id);  // throws CommError on failure
  virtual void do_wait(std::uint64_t id, Deadline deadline);

  // Collectives, by default written over messages with one tag per kind of call.
  virtual void do_all_to_all_v(int tag, std::span<const Outgoing> send,
                               std::span<const Incoming> recv, Deadline deadline);
  virtual void do_all_gather_v(int tag, std::span<const std::span<const std::byte>> mine,
                               std::span<const Incoming> all, Deadline deadline);

  // False if the transport has no all-reduce of its own. Then it has done nothing, and the sum uses
  // the collectives above. REQUIRES: `values` are whole values of the type, aligned as such.
  enum class SumType { kFloat32, kInt8, kInt16, kInt32, kBFloat16 };
  virtual bool do_native_sum(SumType /*type*/, std::span<std::byte> /*values*/) { return false; }

  // A communicator over members[0], members[1], ... of this one, this rank among them. Called by
  // all members at the same time.
  virtual std::unique_ptr<Communicator> do_group(std::span<const int> members) = 0;

  virtual void do_check() = 0;  // throws CommError, with the reason, if the world has failed

  // Marks the world as failed, notifies the others, and cancels this object's pending operations:
  // afterwards the transport does not touch their buffers, as far as it can guarantee that.
  virtual void do_fail(std::string_view reason) noexcept = 0;

  const std::string& what() const noexcept { return what_; }  // all Scopes' texts, outermost first
  void count(const Traffic& more) noexcept;                   // for bytes moved outside these calls

 private:
  friend class ForwardingCommunicator;  // tests/support/faulty_comm.h: passes calls on to another

  template <typename Body>
  auto guarded(const char* operation, Body&& body);
  [[noreturn]] void give_up(const std::string& why);
  Deadline deadline() const { return std::chrono::steady_clock::now() + timeout_; }
  void exchange(int tag, std::span<const Outgoing> send, std::span<const Incoming> recv);
  void gather(int tag, std::span<const std::byte> mine, std::span<std::byte> all);
  void gather_v(int tag, std::span<const std::span<const std::byte>> mine,
                std::span<const Incoming> all);
  std::vector<int> others()
      const;  // all other ranks, from rank() + 1 on: if all began at 0, rank 0 would be congested
  [[noreturn]] void refuse_messages() const;
  template <typename T>
  void sum_natively(SumType type, std::span<T> values);
  template <typename T>
  void add_in_rank_order(std::span<T> values, std::vector<T>& rows);
  void check_peer(const char* operation, int peer, int tag) const;
  std::unique_ptr<Communicator> group(std::span<const int> members);

  int rank_;
  int size_;
  std::chrono::milliseconds timeout_{300'000};
  std::string what_;
  const char* operation_ = nullptr;  // the public call in progress
  Traffic traffic_;
};

}  // namespace pride
