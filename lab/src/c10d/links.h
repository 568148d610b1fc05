// Links: the streams of messages between the ranks of a c10d world, its duplicates and its splits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

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
#include <thread>
#include <utility>
#include <vector>

#include "c10d/engine.h"

namespace pride::process_group {

struct Header;

// A message that arrived before its receive, with its bytes.
struct Arrival {
  std::size_t size = 0;
  enum class State { kComing, kWhole, kLost } state = State::kComing;
  std::unique_ptr<std::byte[]> bytes = nullptr;
  struct Operation* receive = nullptr;  // the receive waiting for it, if any
};

// The thread of one communicator, which waits for one operation at a time.
struct Waiter {
  std::condition_variable changed;
  const struct Operation* awaited = nullptr;
};

// One send or receive. Members below the line belong to the links until it is done or given up.
struct Operation {
  bool is_send = false;
  int peer = 0;  // the rank in the first world, as throughout the links
  int tag = 0;
  std::uint64_t world = 0;  // the communicator's number
  std::size_t size = 0;
  std::byte* target = nullptr;  // of a receive
  Waiter* waiter = nullptr;
  // ---
  enum class Fault { kNone, kSize, kLeft } fault = Fault::kNone;
  std::size_t sent = 0;  // of kSize: the size that the peer sends
  bool done = false;
  bool busy = false;  // c10d may read or write the caller's bytes
  std::shared_ptr<Arrival> arrival = nullptr;
};

// Between two ranks all messages of all communicators are one stream each way: a header of fixed
// size, which carries short messages whole, then the bytes of a longer one. Messages are received
// whether or not their receive has been posted. Each peer has a thread for each kind of work that
// c10d can only block on (headers, incoming bytes, sends), and a wait that times out closes all
// connections. So sends complete even without a matching receive, and a wait can stop at any time.
// Several threads may use an object, each with Operations of its own.
class Links {
 public:
  explicit Links(EnginePtr engine);  // null: a world of one rank
  // Sends goodbye and waits for the others' goodbyes, for kGoodbyeTimeout at most.
  ~Links();
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(peers_.size()); }

  // Returns when all ranks have joined, even if one of them has failed since. Throws CommError at
  // the deadline, or if one left without a goodbye.
  void meet(std::chrono::steady_clock::time_point deadline);

  // Each communicator adds its waiter when constructed and removes it when destroyed.
  void add(Waiter& waiter);
  void remove(Waiter& waiter) noexcept;

  void send(Operation& op, std::span<const std::byte> bytes);
  void receive(Operation& op);

  // State of an operation. kDone: it is over, and its bytes have arrived.
  enum class Standing { kPending, kDone, kFaulty, kDead };
  Standing look(Operation& op);
  Standing wait(Operation& op, std::chrono::steady_clock::time_point deadline);

  // Cancels operations that have not begun, and completes those in progress, within kGrace; closes
  // all connections if that is not enough. Nothing touches the operations' bytes afterwards.
  void give_up(std::span<Operation* const> ops) noexcept;
  void forget(std::uint64_t world) noexcept;  // drops messages that were not received

  void check_alive();                           // throws CommError with the reason
  void fail(std::string_view reason) noexcept;  // only the first call counts
  std::string end_reason(int peer);             // reason for the end of the peer's stream

 private:
  struct Sent {
    WorkPtr work;
    Operation* op = nullptr;  // null: the operation has ended already
  };
  struct Body {  // bytes in flight to an operation or to an arrival; one of the pointers is null
    WorkPtr work;
    Operation* op = nullptr;
    std::shared_ptr<Arrival> arrival;
  };
  struct Channel {  // one of the two queues is empty
    std::deque<Operation*> expected;
    std::deque<std::shared_ptr<Arrival>> arrived;
  };
  struct Peer {
    std::deque<Sent> sends;
    std::map<std::pair<std::uint64_t, int>, Channel> channels;  // by world and tag
    std::deque<Body> bodies;
    WorkPtr header;
    std::condition_variable more_sends, more_bodies;
    bool here = false;    // hello received
    bool left = false;    // its stream to this rank has ended
    bool broken = false;  // the stream to it has ended, too
    std::string end_reason;
    std::thread sends_watcher, bodies_watcher, header_taker;
  };

  // the threads
  void watch_sends(int to);
  void watch_bodies(int from);
  void take_headers(int from);
  bool take(int from, const Header& header);
  void take_message(int from, const Header& header);
  void take_failure(int from, const Header& header);
  void mark_here(int peer);
  void mark_left(int peer, const std::string& words, bool suddenly);

  void post(int to, const Header& header, at::Tensor bytes, Operation* op);
  WorkPtr post_receive(int from, int tag, std::byte* target, std::size_t size);
  void send_control(int to, std::int32_t kind, std::string_view text) noexcept;
  void notify_others(const std::string& reason, int except) noexcept;
  bool mark_dead(const std::string& reason);
  void end_alone(Operation& op, Operation::Fault fault);
  Standing conclude(Operation& op, Standing now);
  bool alive();
  bool has_left(int peer);
  void stop() noexcept;
  void cut() noexcept;

  // these expect mutex_ to be held
  bool wait_for(Peer& peer, const WorkPtr& work, std::unique_lock<std::mutex>& lock);
  Operation* claim(int from, const Header& header);
  void offer(int from, const Header& header, const Body& body);
  void arrive(Arrival& arrival, bool whole);
  void abort_all(Peer& peer);
  void end(Operation& op, Operation::Fault fault);
  void accept(Operation& op, std::shared_ptr<Arrival> arrival);
  void forget_receive(Operation& op);
  Standing standing(const Operation& op) const;
  bool flushed() const;
  bool all_left() const;

  const EnginePtr engine_;
  const int rank_;
  std::mutex post_mutex_;  // keeps the order of posts; locked before mutex_
  std::mutex mutex_;       // guards the members below
  std::vector<Peer> peers_;
  std::vector<Waiter*> waiters_;
  std::condition_variable
      settled_;  // notified when a queue of sends is empty, an operation is over, a peer has left
  bool dead_ = false, stopping_ = false, cut_ = false;
  std::string reason_;  // "rank 2: ..."
};

}  // namespace pride::process_group
