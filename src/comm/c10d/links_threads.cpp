// Links: the two threads of each peer. One sees sends complete, one takes what comes.
// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <new>
#include <utility>

#include "comm/c10d/frame.h"
#include "comm/c10d/links.h"
#include "pride/error.h"

namespace pride::process_group {

using Fault = Operation::Fault;

namespace {

// How long a reason may take that comes by way of a third rank.
constexpr std::chrono::milliseconds kDetour{100};

}  // namespace

void Links::watch_sends(int to) {
  Peer& peer = peers_[to];
  std::unique_lock lock(mutex_);
  for (;;) {
    peer.more_sends.wait(lock, [&] { return stopping_ || !peer.sends.empty(); });
    if (peer.sends.empty()) return;
    const WorkPtr work = peer.sends.front().work;
    lock.unlock();
    const bool good = trouble_of(*work).empty();
    lock.lock();
    // a connection that is closed has ended all that was to go over it
    for (bool more = true; more; more = !good && !peer.sends.empty()) {
      if (Operation* op = peer.sends.front().op) end(*op, good ? Fault::kNone : Fault::kLeft);
      peer.sends.pop_front();
    }
    if (peer.sends.empty()) settled_.notify_all();
  }
}

void Links::take_messages(int from) {
  try {
    Header place;
    auto* bytes = reinterpret_cast<std::byte*>(&place);
    WorkPtr next = post_receive(from, kHeaderTag, bytes, sizeof place);
    for (;;) {
      finish(*next);
      const Header header = place;
      next = post_receive(from, kHeaderTag, bytes, sizeof place);
      if (!take(from, header)) return mark_left(from, "it has left", false);
    }
  } catch (const std::bad_alloc&) {
    fail(concat("no memory for a message from rank ", from));
    mark_left(from, "no memory for its message", false);
  } catch (const std::exception& e) {
    mark_left(from, e.what(), true);
  }
}

// False if it was the last one.
bool Links::take(int from, const Header& header) {
  switch (header.kind) {
    case kMessage:
      take_message(from, header);
      return true;
    case kHello: {
      const std::lock_guard lock(mutex_);
      peers_[from].here = true;
      settled_.notify_all();
      return true;
    }
    case kFailure:
      take_failure(from, header);
      return true;
    case kGoodbye:
      return false;
    default:
      throw CommError("what came is no message of pride: who else uses this process group?");
  }
}

void Links::take_message(int from, const Header& header) {
  std::unique_lock lock(mutex_);
  const std::pair key{header.world, static_cast<int>(header.tag)};
  auto& [expected, arrived] = peers_[from].channels[key];
  if (expected.empty()) {
    const auto arrival = std::make_shared<Arrival>();
    arrival->size = header.size;
    arrived.push_back(arrival);
    lock.unlock();
    return keep(from, header, *arrival);
  }
  Operation& op = *expected.front();
  expected.pop_front();
  if (expected.empty()) peers_[from].channels.erase(key);
  if (op.size != header.size) {
    op.sent = header.size;
    end(op, Fault::kSize);
    lock.unlock();
    Arrival unwanted;
    return keep(from, header, unwanted);
  }
  op.busy = true;
  lock.unlock();
  try {
    take_bytes(from, header, op.target);
  } catch (...) {
    end_alone(op, Fault::kLeft);
    throw;
  }
  end_alone(op, Fault::kNone);
}

// `arrival` is known to others, its bytes are not.
void Links::keep(int from, const Header& header, Arrival& arrival) {
  auto bytes = std::make_unique_for_overwrite<std::byte[]>(header.size);
  bool whole = false;
  try {
    take_bytes(from, header, bytes.get());
    whole = true;
  } catch (const CommError& e) {
    const std::lock_guard lock(mutex_);
    peers_[from].parting_words = e.what();
  }
  const std::lock_guard lock(mutex_);
  arrival.bytes = std::move(bytes);
  arrival.state = whole ? Arrival::State::kWhole : Arrival::State::kLost;
  if (arrival.taker != nullptr) end(*arrival.taker, whole ? Fault::kNone : Fault::kLeft);
}

void Links::take_bytes(int from, const Header& header, std::byte* target) {
  if (header.size <= kInline) {
    std::memcpy(target, header.bytes, header.size);
  } else {
    finish(*post_receive(from, kBytesTag, target, header.size));
  }
}

void Links::take_failure(int from, const Header& header) {
  std::string reason(header.size, ' ');
  take_bytes(from, header, reinterpret_cast<std::byte*>(reason.data()));
  // whoever was cut off from the rank that failed hears of it from us
  if (mark_dead(reason)) tell_others(reason, from);
}

// Receives that wait for the peer fail. A connection that broke may be the work of a rank that
// failed: then its reason comes, too.
void Links::mark_left(int peer, const std::string& words, bool suddenly) {
  std::unique_lock lock(mutex_);
  if (suddenly) settled_.wait_for(lock, kDetour, [&] { return dead_ || stopping_; });
  Peer& gone = peers_[peer];
  gone.left = true;
  if (gone.parting_words.empty()) gone.parting_words = words;
  for (auto& [key, channel] : gone.channels) {
    for (Operation* op : channel.expected) end(*op, Fault::kLeft);
    channel.expected.clear();
  }
  settled_.notify_all();
}

}  // namespace pride::process_group
