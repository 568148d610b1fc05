// The mailboxes behind thread_comm: matching, the one copy, failure. Independent of Communicator.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pride::threads {

class World;

// A world with its duplicates and splits: they fail together.
class Family {
 public:
  bool dead() const noexcept { return dead_.load(std::memory_order_acquire); }
  int failed_rank() const;     // of the first world; -1 if none has failed
  std::string reason() const;  // "rank 2: ...", once dead

  // Only the first call counts. Wakes all waiting ranks. `rank` is that of the first world.
  void fail(int rank, std::string_view reason) noexcept;

  void add(const std::shared_ptr<World>& world);

 private:
  std::atomic<bool> dead_{false};
  mutable std::mutex mutex_;  // guards the members below
  int failed_rank_ = -1;
  std::string reason_;
  std::vector<std::weak_ptr<World>> worlds_;
};

// One send or receive, owned by the rank that started it. Guarded by the world's lock from start()
// until a test sees it done, or cancel().
struct Operation {
  enum class State { kUnmatched, kMatched, kCopying, kDone, kFailed };

  State state = State::kUnmatched;
  bool is_send = false;
  int self = 0, peer = 0, tag = 0;
  const std::byte* source = nullptr;  // of a send
  std::byte* target = nullptr;        // of a receive
  std::size_t size = 0;
  Operation* partner = nullptr;  // when matched
  Operation* before = nullptr;   // in its queue, while unmatched
  Operation* after = nullptr;
  std::string error = {};  // when failed

  std::string text() const;  // "receive of 12 bytes from rank 1 (tag 7)"
};

// Operations between one sender and one receiver that wait for a partner, in the order started.
// With one tag all are sends or all are receives. The list links the operations themselves, because
// a world of N ranks has N^2 queues, nearly all of them empty at any time.
class Queue {
 public:
  Operation* first_of(int tag) const noexcept;
  void append(Operation& op) noexcept;
  void remove(Operation& op) noexcept;

  // Removes each operation whose peer is `rank` and passes it to the callback.
  template <typename Visit>
  void take_those_of_peer(int rank, Visit&& visit);

 private:
  Operation* first_ = nullptr;
  Operation* last_ = nullptr;
};

// State shared by the ends of one world. One lock guards all of it: an operation takes well below a
// microsecond under it, and copies of more than a few hundred bytes are made outside.
class World {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  World(std::shared_ptr<Family> family, std::vector<int> first_ranks);

  int size() const noexcept { return static_cast<int>(first_ranks_.size()); }
  int first_rank(int rank) const { return first_ranks_[rank]; }  // its rank in the first world
  const std::shared_ptr<Family>& family() const noexcept { return family_; }

  // Finds the partner, or queues the operation until it comes.
  void start(Operation& op);

  // Both also make the copies that wait for op.self as a receiver. They throw CommError if the
  // operation or the family has failed; wait also at the deadline.
  bool test(Operation& op);
  void wait(Operation& op, Deadline deadline);

  // Cancels the operation; afterwards its buffer is not touched.
  void cancel(Operation& op) noexcept;

  // Ends the operations of this rank: waits for it get an error.
  void leave(int rank) noexcept;

  void wake_all() noexcept;

  // The world of this world's `serial`-th group, with these members. The first call creates it; the
  // last member's removes it from births_.
  std::shared_ptr<World> group(std::uint64_t serial, std::span<const int> members);

 private:
  using Lock = std::unique_lock<std::mutex>;

  struct Box {                        // of one rank
    std::vector<Queue> from;          // by sender: unmatched operations between it and this rank
    std::deque<Operation*> ready;     // matched receives, to be copied by the rank
    const Operation* awaited = {};    // the rank sleeps until this ends; others do not wake it
    std::condition_variable changed;  // `awaited`, `ready` or the family
    bool left = false;
  };

  struct Birth {
    std::shared_ptr<World> world;
    std::size_t still_to_ask = 0;
  };

  Queue& queue_of(const Operation& op);
  void match(Operation& send, Operation& recv);
  void end(Operation& op, std::string error = {});
  void copy_next(Lock& lock, int rank);
  bool settled(const Operation& op) const;

  std::shared_ptr<Family> family_;
  std::vector<int> first_ranks_;
  std::mutex mutex_;  // guards the members below
  std::vector<std::unique_ptr<Box>> boxes_;
  std::map<std::pair<std::uint64_t, int>, Birth> births_;
};

}  // namespace pride::threads
