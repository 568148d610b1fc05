// The mailboxes behind thread_comm.
// SPDX-License-Identifier: Apache-2.0
#include "comm/thread_world.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "pride/error.h"

namespace pride::threads {
namespace {

// Up to this size a copy under the lock is cheaper than waking the receiver to make it.
constexpr std::size_t kCopyUnderLock = 512;

// Yields of a waiting rank before it sleeps. A wake-up costs some 30 us: without yields a barrier
// of 4 ranks on 2 cores took 80 us instead of 20 to 40.
constexpr int kYields = 16;

}  // namespace

// --- Family. ------------------------------------------------------------------------------------

int Family::failed_rank() const {
  const std::lock_guard lock(mutex_);
  return failed_rank_;
}

std::string Family::reason() const {
  const std::lock_guard lock(mutex_);
  return concat("rank ", failed_rank_, ": ", reason_);
}

void Family::add(const std::shared_ptr<World>& world) {
  const std::lock_guard lock(mutex_);
  std::erase_if(worlds_, [](const auto& w) { return w.expired(); });
  worlds_.push_back(world);
}

void Family::fail(int rank, std::string_view reason) noexcept {
  std::vector<std::weak_ptr<World>> worlds;
  {
    const std::lock_guard lock(mutex_);
    if (dead()) return;
    failed_rank_ = rank;
    try {
      reason_ = reason;
    } catch (...) {
      reason_.clear();  // no memory: the rank alone must suffice
    }
    dead_.store(true, std::memory_order_release);
    worlds.swap(worlds_);
  }
  // outside the lock: a waiter holds its world's lock when it reads the reason
  for (const auto& weak : worlds) {
    if (const auto world = weak.lock()) world->wake_all();
  }
}

// --- Queue. -------------------------------------------------------------------------------------

Operation* Queue::first_of(int tag) const noexcept {
  Operation* op = first_;
  while (op != nullptr && op->tag != tag) op = op->after;
  return op;
}

void Queue::append(Operation& op) noexcept {
  op.before = last_;
  op.after = nullptr;
  (last_ != nullptr ? last_->after : first_) = &op;
  last_ = &op;
}

void Queue::remove(Operation& op) noexcept {
  (op.before != nullptr ? op.before->after : first_) = op.after;
  (op.after != nullptr ? op.after->before : last_) = op.before;
}

template <typename Visit>
void Queue::take_those_of_peer(int rank, Visit&& visit) {
  for (Operation* op = first_; op != nullptr;) {
    Operation& current = *std::exchange(op, op->after);
    if (current.peer != rank) continue;
    remove(current);
    visit(current);
  }
}

// --- World. -------------------------------------------------------------------------------------

std::string Operation::text() const {
  return concat(is_send ? "send of " : "receive of ", size, is_send ? " bytes to" : " bytes from",
                " rank ", peer, " (tag ", tag, ")");
}

World::World(std::shared_ptr<Family> family, std::vector<int> first_ranks)
    : family_(std::move(family)), first_ranks_(std::move(first_ranks)) {
  for (int i = 0; i < size(); ++i) {
    boxes_.push_back(std::make_unique<Box>());
    boxes_.back()->from.resize(first_ranks_.size());
  }
}

Queue& World::queue_of(const Operation& op) {
  return op.is_send ? boxes_[op.peer]->from[op.self] : boxes_[op.self]->from[op.peer];
}

// Ends the operation, and wakes its rank if that sleeps for it. A rank that sleeps for another
// operation is not woken: in a collective of N ranks it would wake 2N times for nothing.
void World::end(Operation& op, std::string error) {
  op.partner = nullptr;
  op.state = error.empty() ? Operation::State::kDone : Operation::State::kFailed;
  op.error = std::move(error);
  Box& own = *boxes_[op.self];
  if (own.awaited == &op) own.changed.notify_one();
}

void World::start(Operation& op) {
  const std::lock_guard lock(mutex_);
  op.state = Operation::State::kUnmatched;
  op.partner = nullptr;
  if (boxes_[op.peer]->left) return end(op, concat("rank ", op.peer, " has left"));

  Queue& queue = queue_of(op);
  Operation* partner = queue.first_of(op.tag);
  if (partner == nullptr || partner->is_send == op.is_send) return queue.append(op);
  queue.remove(*partner);
  op.is_send ? match(op, *partner) : match(*partner, op);
}

void World::match(Operation& send, Operation& recv) {
  if (send.size != recv.size) {
    const auto error = concat("sizes differ: rank ", send.self, " sends ", send.size,
                              " bytes, rank ", recv.self, " expects ", recv.size, " bytes");
    end(send, error);
    return end(recv, error);
  }
  if (send.size <= kCopyUnderLock) {
    if (send.size > 0) std::memcpy(recv.target, send.source, send.size);
    end(send);
    return end(recv);
  }
  send.partner = &recv;
  recv.partner = &send;
  send.state = recv.state = Operation::State::kMatched;
  boxes_[recv.self]->ready.push_back(&recv);
  boxes_[recv.self]->changed.notify_one();
}

// The only copy. Neither end may release its buffer while the state is kCopying.
void World::copy_next(Lock& lock, int rank) {
  auto& ready = boxes_[rank]->ready;
  Operation& recv = *ready.front();
  Operation& send = *recv.partner;
  ready.pop_front();
  send.state = recv.state = Operation::State::kCopying;
  lock.unlock();
  std::memcpy(recv.target, send.source, recv.size);
  lock.lock();
  end(send);
  end(recv);
}

// True if done. Throws if the operation cannot complete. If the family has failed, the error has
// its reason, because op.error may be only a consequence.
bool World::settled(const Operation& op) const {
  if (op.state == Operation::State::kDone) return true;
  if (family_->dead()) throw CommError(concat(op.text(), ": ", family_->reason()));
  if (op.state == Operation::State::kFailed) throw CommError(concat(op.text(), ": ", op.error));
  return false;
}

bool World::test(Operation& op) {
  Lock lock(mutex_);
  if (settled(op)) return true;
  if (!boxes_[op.self]->ready.empty()) copy_next(lock, op.self);
  return settled(op);
}

// A waiting rank serves all its receives: two ranks that both wait for their sends would otherwise
// wait for each other.
void World::wait(Operation& op, Deadline deadline) {
  Lock lock(mutex_);
  Box& own = *boxes_[op.self];
  bool late = false;
  int yields = 0;
  while (!settled(op)) {
    if (!own.ready.empty()) {
      copy_next(lock, op.self);
    } else if (yields < kYields) {
      ++yields;
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    } else if (late) {
      throw CommError(op.text() + ": not complete at the deadline");
    } else {
      own.awaited = &op;
      late = own.changed.wait_until(lock, deadline) == std::cv_status::timeout;
      own.awaited = nullptr;
    }
  }
}

void World::cancel(Operation& op) noexcept {
  Lock lock(mutex_);
  if (op.state == Operation::State::kUnmatched) queue_of(op).remove(op);
  if (op.state == Operation::State::kMatched) {
    Operation& recv = op.is_send ? *op.partner : op;
    std::erase(boxes_[recv.self]->ready, &recv);
    end(*op.partner, concat("rank ", op.self, " stopped waiting for it"));
  }
  // the receiver is copying from this buffer: microseconds per MB
  Box& own = *boxes_[op.self];
  own.awaited = &op;
  while (op.state == Operation::State::kCopying) own.changed.wait(lock);
  own.awaited = nullptr;
}

// Visits the rank's own 2N queues only: all ranks leave, and N^2 each would be N^3 together.
void World::leave(int rank) noexcept {
  const Lock lock(mutex_);
  boxes_[rank]->left = true;
  const auto fail = [&](Operation& op) { end(op, concat("rank ", rank, " has left")); };
  for (int i = 0; i < size(); ++i) {
    boxes_[i]->from[rank].take_those_of_peer(rank, fail);
    boxes_[rank]->from[i].take_those_of_peer(rank, fail);
  }
}

void World::wake_all() noexcept {
  const Lock lock(mutex_);
  for (const auto& box : boxes_) box->changed.notify_all();
}

std::shared_ptr<World> World::group(std::uint64_t serial, std::span<const int> members) {
  const Lock lock(mutex_);
  const std::pair id{serial, members.front()};
  Birth& birth = births_[id];
  if (!birth.world) {
    std::vector<int> first_ranks;
    for (const int member : members) first_ranks.push_back(first_ranks_[member]);
    birth = {std::make_shared<World>(family_, std::move(first_ranks)), members.size()};
    family_->add(birth.world);
  }
  const auto world = birth.world;
  if (--birth.still_to_ask == 0) births_.erase(id);
  return world;
}

}  // namespace pride::threads
