// Links: the three threads of each peer. They receive headers, and wait for sends and receives.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "c10d/frame.h"
#include "c10d/links.h"
#include "pride/error.h"

namespace pride::process_group {

using Fault = Operation::Fault;

namespace {

// Longest time for a failure reason to arrive by way of a third rank.
constexpr std::chrono::milliseconds kDetour{100};

}  // namespace

// Waits with `lock` released. False if the work failed; then the peer has an end reason.
bool Links::wait_for(Peer& peer, const WorkPtr& work, std::unique_lock<std::mutex>& lock) {
  if (cut_) work->abort();
  lock.unlock();
  const std::string trouble = trouble_of(*work);
  lock.lock();
  if (peer.end_reason.empty()) peer.end_reason = trouble;
  return trouble.empty();
}

void Links::watch_sends(int to) {
  Peer& peer = peers_[to];
  std::unique_lock lock(mutex_);
  for (;;) {
    peer.more_sends.wait(lock, [&] { return stopping_ || !peer.sends.empty(); });
    if (peer.sends.empty()) return;
    const WorkPtr work = peer.sends.front().work;
    const bool good = wait_for(peer, work, lock);
    if (Operation* op = peer.sends.front().op) end(*op, good ? Fault::kNone : Fault::kLeft);
    peer.sends.pop_front();
    if (peer.sends.empty()) settled_.notify_all();
  }
}

void Links::watch_bodies(int from) {
  Peer& peer = peers_[from];
  std::unique_lock lock(mutex_);
  for (;;) {
    peer.more_bodies.wait(lock, [&] { return stopping_ || !peer.bodies.empty(); });
    if (peer.bodies.empty()) return;
    const WorkPtr work = peer.bodies.front().work;
    const bool good = wait_for(peer, work, lock);
    const Body body = std::move(peer.bodies.front());
    peer.bodies.pop_front();
    if (body.arrival) {
      arrive(*body.arrival, good);
    } else {
      end(*body.op, good ? Fault::kNone : Fault::kLeft);
    }
  }
}

void Links::arrive(Arrival& arrival, bool whole) {
  arrival.state = whole ? Arrival::State::kWhole : Arrival::State::kLost;
  if (arrival.receive != nullptr) end(*arrival.receive, whole ? Fault::kNone : Fault::kLeft);
}

void Links::take_headers(int from) {
  try {
    Header place;
    auto* bytes = reinterpret_cast<std::byte*>(&place);
    for (;;) {
      const WorkPtr next = post_receive(from, kHeaderTag, bytes, sizeof place);
      {
        std::unique_lock lock(mutex_);
        peers_[from].header = next;
        if (cut_) next->abort();
      }
      finish(*next);
      if (!take(from, place)) return mark_left(from, "it has left", false);
    }
  } catch (const std::bad_alloc&) {
    fail(concat("no memory for a message from rank ", from));
    mark_left(from, "no memory for its message", false);
  } catch (const std::exception& e) {
    mark_left(from, e.what(), true);
  }
}

// False if it was the last message of the stream.
bool Links::take(int from, const Header& header) {
  switch (header.kind) {
    case kMessage:
      take_message(from, header);
      return true;
    case kHello:
      mark_here(from);
      return true;
    case kFailure:
      take_failure(from, header);
      return true;
    case kGoodbye:
      return false;
    default:
      throw CommError(
          "received bytes are not a message of pride: is this process group used elsewhere?");
  }
}

void Links::take_message(int from, const Header& header) {
  std::unique_lock lock(mutex_);
  Body body;
  std::byte* target = nullptr;
  body.op = claim(from, header);
  if (body.op != nullptr) {
    target = body.op->target;
    body.op->busy = true;
  } else {
    lock.unlock();  // allocation of large memory takes time
    body.arrival = std::make_shared<Arrival>();
    body.arrival->size = header.size;
    body.arrival->bytes = std::make_unique_for_overwrite<std::byte[]>(header.size);
    target = body.arrival->bytes.get();
    lock.lock();
    offer(from, header, body);
  }
  const bool whole = header.size <= kInline;
  if (whole) {
    if (header.size > 0) std::memcpy(target, header.bytes, header.size);
    return body.arrival ? arrive(*body.arrival, true) : end(*body.op, Fault::kNone);
  }
  lock.unlock();
  try {
    body.work = post_receive(from, kBytesTag, target, header.size);
  } catch (const std::exception& e) {
    lock.lock();
    if (peers_[from].end_reason.empty()) peers_[from].end_reason = e.what();
    body.arrival ? arrive(*body.arrival, false) : end(*body.op, Fault::kLeft);
    throw;
  }
  lock.lock();
  Peer& peer = peers_[from];
  peer.bodies.push_back(std::move(body));
  peer.more_bodies.notify_one();
}

// The receive that matches the message in channel and size; null if there is none.
Operation* Links::claim(int from, const Header& header) {
  auto& channels = peers_[from].channels;
  const auto channel = channels.find({header.world, header.tag});
  if (channel == channels.end() || channel->second.expected.empty()) return nullptr;
  Operation* op = channel->second.expected.front();
  if (op->size != header.size) return nullptr;
  channel->second.expected.pop_front();
  if (channel->second.expected.empty()) channels.erase(channel);
  return op;
}

// Assigns the message to the first started receive of its channel, or else to the next one.
void Links::offer(int from, const Header& header, const Body& body) {
  auto& channels = peers_[from].channels;
  const auto channel = channels.try_emplace({header.world, header.tag}).first;
  auto& [expected, arrived] = channel->second;
  if (expected.empty()) {
    arrived.push_back(body.arrival);
    return;
  }
  accept(*expected.front(), body.arrival);
  expected.pop_front();
  if (expected.empty()) channels.erase(channel);
}

void Links::take_failure(int from, const Header& header) {
  const std::string reason(reinterpret_cast<const char*>(header.bytes),
                           std::min<std::size_t>(header.size, kInline));
  // forwarded: a rank may be cut off from the rank that failed
  if (mark_dead(reason)) notify_others(reason, from);
}

void Links::mark_here(int peer) {
  const std::lock_guard lock(mutex_);
  peers_[peer].here = true;
  settled_.notify_all();
}

// Fails the receives that wait for the peer. If a rank's failure broke the connection, its reason
// arrives within kDetour. Gloo does not wake waits for bytes in flight, so they are aborted.
void Links::mark_left(int peer, const std::string& words, bool suddenly) {
  std::unique_lock lock(mutex_);
  if (suddenly) settled_.wait_for(lock, kDetour, [&] { return dead_ || stopping_; });
  Peer& gone = peers_[peer];
  gone.left = true;
  gone.broken = suddenly;
  if (gone.end_reason.empty()) gone.end_reason = words;
  for (auto& [key, channel] : gone.channels) {
    for (Operation* op : channel.expected) end(*op, Fault::kLeft);
    channel.expected.clear();
  }
  if (suddenly) abort_all(gone);
  settled_.notify_all();
}

void Links::abort_all(Peer& peer) {
  for (const Sent& sent : peer.sends) sent.work->abort();
  for (const Body& body : peer.bodies) body.work->abort();
  if (peer.header) peer.header->abort();
}

}  // namespace pride::process_group
