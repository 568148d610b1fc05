// Links: posting messages, completion of operations, and shutdown or failure of a world.
// SPDX-License-Identifier: Apache-2.0
#include "c10d/links.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "c10d/frame.h"
#include "c10d/sigpipe.h"
#include "pride/error.h"

namespace pride::process_group {

using std::chrono::milliseconds;
using Fault = Operation::Fault;

namespace {

// kGrace: for a failed rank's operations in progress to end. kGoodbyeTimeout: for the other ranks'
// goodbyes. kCertain: after cut(), when operations end at once, up to thread scheduling.
constexpr milliseconds kGrace{300}, kGoodbyeTimeout{2000}, kCertain{10'000};

}  // namespace

// --- Startup and shutdown. -----------------------------------------------------------------------

Links::Links(EnginePtr engine)
    : engine_(std::move(engine)),
      rank_(engine_ ? engine_->getRank() : 0),
      peers_(engine_ ? static_cast<std::size_t>(engine_->getSize()) : 1) {
  try {
    for (int i = 0; i < size(); ++i) {
      if (i == rank_) continue;
      peers_[i].sends_watcher = std::thread([this, i] { watch_sends(i); });
      peers_[i].bodies_watcher = std::thread([this, i] { watch_bodies(i); });
      peers_[i].header_taker = std::thread([this, i] { take_headers(i); });
    }
  } catch (...) {
    stop();
    throw;
  }
}

void Links::meet(std::chrono::steady_clock::time_point deadline) {
  for (int i = 0; i < size(); ++i) {
    if (i != rank_) send_control(i, kHello, {});
  }
  std::unique_lock lock(mutex_);
  for (int i = 0; i < size(); ++i) {
    const Peer& peer = peers_[i];
    if (i == rank_) continue;
    settled_.wait_until(lock, deadline, [&] { return peer.here || peer.left; });
    if (peer.here) continue;
    throw CommError(concat(
        "rank ", rank_, " of ", size(), ": rank ", i,
        peer.left ? " has left, or died: " + peer.end_reason : " did not connect by the deadline"));
  }
}

// An immediate close could destroy data that the peer has not read yet.
Links::~Links() {
  if (alive()) {
    for (int i = 0; i < size(); ++i) {
      if (i != rank_) send_control(i, kGoodbye, {});
    }
  }
  {
    std::unique_lock lock(mutex_);
    settled_.wait_for(lock, dead_ ? kGrace : kGoodbyeTimeout,
                      [&] { return flushed() && (dead_ || all_left()); });
  }
  stop();
}

bool Links::alive() {
  const std::lock_guard lock(mutex_);
  return !dead_;
}

void Links::stop() noexcept {
  bool open = false;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    open = !(all_left() && flushed());
    for (Peer& peer : peers_) {
      open |= !peer.bodies.empty();
      peer.more_sends.notify_all();
      peer.more_bodies.notify_all();
    }
    settled_.notify_all();
  }
  if (open) cut();
  for (Peer& peer : peers_) {
    for (std::thread* thread : {&peer.sends_watcher, &peer.bodies_watcher, &peer.header_taker}) {
      if (thread->joinable()) thread->join();
    }
  }
}

bool Links::has_left(int peer) {
  const std::lock_guard lock(mutex_);
  return peers_[peer].left;
}

bool Links::all_left() const {
  for (int i = 0; i < size(); ++i) {
    if (i != rank_ && !peers_[i].left) return false;
  }
  return true;
}

bool Links::flushed() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const Peer& p) { return p.sends.empty(); });
}

// Closes all connections, by waits that time out. Only this stops Gloo in the middle of a message
// and guarantees that it does not touch the bytes afterwards.
void Links::cut() noexcept {
  std::byte nothing{};
  for (int tag = kFirstUnusedTag; tag <= kLastUnusedTag; ++tag) {
    for (int i = 0; i < size(); ++i) {
      if (i == rank_) continue;
      try {
        post_receive(i, tag, &nothing, 1)->wait(milliseconds(1));
      } catch (...) {
        // timed out as intended, or the connection was closed already
      }
    }
  }
  const std::lock_guard lock(mutex_);
  cut_ = true;
  for (Peer& peer : peers_) abort_all(peer);
}

// --- Posting. -----------------------------------------------------------------------------------

void Links::post(int to, const Header& header, at::Tensor bytes, Operation* op) {
  std::vector<at::Tensor> head{copy_of(&header, sizeof header)}, body;
  if (bytes.defined()) body.push_back(std::move(bytes));
  const NoSigpipe no_sigpipe;
  const std::lock_guard posting(post_mutex_);
  WorkPtr sent = engine_->send(head, to, kHeaderTag);
  WorkPtr sent_body = body.empty() ? WorkPtr() : engine_->send(body, to, kBytesTag);
  const std::lock_guard lock(mutex_);
  Peer& peer = peers_[to];
  peer.sends.push_back({std::move(sent), nullptr});
  if (sent_body) peer.sends.push_back({std::move(sent_body), op});
  if (peer.broken) abort_all(peer);
  peer.more_sends.notify_one();
}

WorkPtr Links::post_receive(int from, int tag, std::byte* target, std::size_t size) {
  std::vector<at::Tensor> one{view(target, size)};
  const NoSigpipe no_sigpipe;
  const std::lock_guard posting(post_mutex_);
  return engine_->recv(one, from, tag);
}

void Links::send(Operation& op, std::span<const std::byte> bytes) {
  if (has_left(op.peer)) return end_alone(op, Fault::kLeft);
  Header header{.tag = op.tag, .world = op.world, .size = bytes.size()};
  const bool fits = bytes.size() <= kInline;
  if (fits) {
    std::copy(bytes.begin(), bytes.end(), header.bytes);
  } else {
    op.busy = true;  // before post: no other thread has access to it yet
  }
  try {
    post(op.peer, header, fits ? at::Tensor() : view(bytes.data(), bytes.size()), &op);
  } catch (const std::exception& e) {
    const std::lock_guard lock(mutex_);
    std::string& words = peers_[op.peer].end_reason;
    if (words.empty()) words = e.what();
    return end(op, Fault::kLeft);  // the connection is closed
  }
  if (fits) end_alone(op, Fault::kNone);
}

void Links::receive(Operation& op) {
  const std::lock_guard lock(mutex_);
  Peer& peer = peers_[op.peer];
  const auto channel = peer.channels.try_emplace({op.world, op.tag}).first;
  auto& [expected, arrived] = channel->second;
  if (arrived.empty() && !peer.left) {
    expected.push_back(&op);
    return;
  }
  if (arrived.empty()) {
    end(op, Fault::kLeft);
  } else {
    accept(op, std::move(arrived.front()));
    arrived.pop_front();
  }
  if (arrived.empty()) peer.channels.erase(channel);
}

void Links::accept(Operation& op, std::shared_ptr<Arrival> arrival) {
  if (arrival->size != op.size) {
    op.sent = arrival->size;
    return end(op, Fault::kSize);
  }
  op.arrival = std::move(arrival);
  if (op.arrival->state == Arrival::State::kComing) {
    op.arrival->receive = &op;
  } else {
    end(op, op.arrival->state == Arrival::State::kWhole ? Fault::kNone : Fault::kLeft);
  }
}

// --- Completion of operations. -------------------------------------------------------------------

void Links::end(Operation& op, Fault fault) {
  op.fault = fault;
  op.done = true;
  op.busy = false;
  if (op.waiter->awaited == &op) op.waiter->changed.notify_one();
  settled_.notify_all();
}

void Links::end_alone(Operation& op, Fault fault) {
  const std::lock_guard lock(mutex_);
  end(op, fault);
}

Links::Standing Links::standing(const Operation& op) const {
  if (op.done && op.fault == Fault::kNone) return Standing::kDone;
  if (dead_) return Standing::kDead;
  return op.done ? Standing::kFaulty : Standing::kPending;
}

Links::Standing Links::look(Operation& op) {
  Standing now;
  {
    const std::lock_guard lock(mutex_);
    now = standing(op);
  }
  return conclude(op, now);
}

Links::Standing Links::wait(Operation& op, std::chrono::steady_clock::time_point deadline) {
  Standing now;
  {
    std::unique_lock lock(mutex_);
    op.waiter->awaited = &op;
    op.waiter->changed.wait_until(lock, deadline,
                                  [&] { return (now = standing(op)) != Standing::kPending; });
    op.waiter->awaited = nullptr;
  }
  return conclude(op, now);
}

// The waiting thread copies an early message, so that the peer's thread can continue.
Links::Standing Links::conclude(Operation& op, Standing now) {
  if (now == Standing::kDone && op.arrival) {
    if (op.size > 0) std::memcpy(op.target, op.arrival->bytes.get(), op.size);
    op.arrival.reset();
  }
  return now;
}

void Links::give_up(std::span<Operation* const> ops) noexcept {
  std::unique_lock lock(mutex_);
  for (Operation* op : ops) forget_receive(*op);
  const auto over = [&] {
    return std::none_of(ops.begin(), ops.end(), [](const Operation* op) { return op->busy; }) &&
           (!dead_ || flushed());
  };
  if (settled_.wait_for(lock, kGrace, over)) return;
  lock.unlock();
  fail("failed in the middle of a message");
  cut();
  lock.lock();
  settled_.wait_for(lock, kCertain, over);
}

void Links::forget_receive(Operation& op) {
  if (op.arrival) op.arrival->receive = nullptr;
  if (op.is_send || op.done || op.busy) return;
  Peer& peer = peers_[op.peer];
  const auto channel = peer.channels.find({op.world, op.tag});
  if (channel == peer.channels.end()) return;
  std::erase(channel->second.expected, &op);
  if (channel->second.expected.empty() && channel->second.arrived.empty()) {
    peer.channels.erase(channel);
  }
}

void Links::forget(std::uint64_t world) noexcept {
  const std::lock_guard lock(mutex_);
  for (Peer& peer : peers_) {
    std::erase_if(peer.channels, [&](const auto& c) { return c.first.first == world; });
  }
}

// --- Failure of a world. -------------------------------------------------------------------------

void Links::check_alive() {
  const std::lock_guard lock(mutex_);
  if (dead_) throw CommError(reason_);
}

std::string Links::end_reason(int peer) {
  const std::lock_guard lock(mutex_);
  return peers_[peer].end_reason;
}

// Wakes all waiting threads. False if the world had failed before.
bool Links::mark_dead(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (dead_) return false;
  dead_ = true;
  reason_ = reason;
  for (Waiter* waiter : waiters_) waiter->changed.notify_one();
  settled_.notify_all();
  return true;
}

void Links::fail(std::string_view reason) noexcept {
  try {
    const std::string text = concat("rank ", rank_, ": ", reason);
    if (mark_dead(text)) notify_others(text, rank_);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    dead_ = true;  // no memory for the text: peers fail at their deadlines
  }
}

void Links::notify_others(const std::string& reason, int except) noexcept {
  for (int k = 1; k < size(); ++k) {
    const int to = (rank_ + k) % size();
    if (to != except) send_control(to, kFailure, reason);
  }
}

void Links::send_control(int to, std::int32_t kind, std::string_view text) noexcept {
  try {
    if (has_left(to)) return;
    Header header{.kind = kind, .size = std::min(text.size(), kInline)};
    std::memcpy(header.bytes, text.data(), header.size);
    post(to, header, at::Tensor(), nullptr);
  } catch (...) {
    // the connection is closed: the peer has detected it
  }
}

void Links::add(Waiter& waiter) {
  const std::lock_guard lock(mutex_);
  waiters_.push_back(&waiter);
}

void Links::remove(Waiter& waiter) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase(waiters_, &waiter);
}

}  // namespace pride::process_group
