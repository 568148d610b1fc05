// Replayed peers: one rank runs alone; its peers only repeat their messages of an honest run, with
// some of the bytes changed. For tests and fuzzers of a rank's handling of hostile frames; one
// thread, and the same result every time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "codecs/frame.h"
#include "pride/comm/thread_comm.h"
#include "pride/digest.h"
#include "pride/error.h"
#include "support/faulty_comm.h"

namespace pride::testing {

// A message to the rank under test. Communicators are numbered: 0 for the world, then in the order
// of duplicates and splits.
struct Message {
  int comm = 0, from = 0, tag = 0;
  std::vector<std::byte> bytes;
};

// Messages of all peers, in rank order; a peer's messages in the order sent.
using Recording = std::vector<Message>;

// A frame in a recording. Its header is at the start of messages[first]. The payload follows, and
// continues in messages[second] if that is not kNone.
struct RecordedFrame {
  static constexpr std::size_t kNone = ~std::size_t{0};
  std::size_t first = 0, second = kNone;
};

inline std::uint64_t number_at(std::span<const std::byte> bytes, std::size_t at,
                               std::size_t width) {
  std::uint64_t value = 0;
  PRIDE_CHECK(at + width <= bytes.size(), "bytes ", at, " + ", width, " of ", bytes.size());
  std::memcpy(&value, bytes.data() + at, width);
  return value;
}

inline void put_number(std::span<std::byte> bytes, std::size_t at, std::size_t width,
                       std::uint64_t value) {
  PRIDE_CHECK(at + width <= bytes.size(), "bytes ", at, " + ", width, " of ", bytes.size());
  std::memcpy(bytes.data() + at, &value, width);
}

inline bool is_frame(const Message& message) {
  return message.bytes.size() >= kHeaderBytes && number_at(message.bytes, 0, 4) == kFrameMagic;
}

// REQUIRES: an honest recording, with correct sizes.
inline std::vector<RecordedFrame> frames_of(const Recording& messages) {
  std::vector<RecordedFrame> frames;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (!is_frame(messages[i])) continue;
    RecordedFrame frame{i};
    if (number_at(messages[i].bytes, 32, 8) > messages[i].bytes.size() - kHeaderBytes) {
      frame.second = i + 1;
    }
    frames.push_back(frame);
  }
  return frames;
}

// Makes size and checksum of a frame valid again after its bytes were changed, as a malicious
// sender would.
inline void reseal(Recording& messages, const RecordedFrame& frame) {
  const std::span<std::byte> whole = messages[frame.first].bytes;
  if (whole.size() < kHeaderBytes) return;
  std::span<const std::byte> first = whole.subspan(kHeaderBytes), second;
  if (frame.second != RecordedFrame::kNone) second = messages[frame.second].bytes;
  put_number(whole, 32, 8, first.size() + second.size());
  if (first.empty()) std::swap(first, second);
  std::uint64_t sum = hash_bytes(first, hash_bytes(whole.first(kHeaderBytes - 8)));
  if (!second.empty()) sum = hash_bytes(second, sum);
  put_number(whole, kHeaderBytes - 8, 8, sum);
}

// Forwards everything, and keeps the messages to one rank.
class RecordingComm final : public ForwardingCommunicator {
 public:
  RecordingComm(std::unique_ptr<Communicator> inner, int to, Recording& out)
      : RecordingComm(std::move(inner), to, out, std::make_shared<int>(0)) {}

 protected:
  std::uint64_t do_start_send(int peer, int tag, std::span<const std::byte> bytes) override {
    if (peer == to_) out_.push_back({number_, rank(), tag, {bytes.begin(), bytes.end()}});
    return ForwardingCommunicator::do_start_send(peer, tag, bytes);
  }
  std::unique_ptr<Communicator> do_group(std::span<const int> members) override {
    return std::unique_ptr<Communicator>(
        new RecordingComm(ForwardingCommunicator::do_group(members), to_, out_, made_));
  }

 private:
  RecordingComm(std::unique_ptr<Communicator> inner, int to, Recording& out,
                std::shared_ptr<int> made)
      : ForwardingCommunicator(std::move(inner)),
        to_(to),
        out_(out),
        made_(std::move(made)),
        number_((*made_)++) {}

  const int to_;
  Recording& out_;
  const std::shared_ptr<int> made_;  // communicators so far, over all duplicates
  const int number_;
};

// Runs `body` on all ranks and returns the others' messages to rank `to`.
// REQUIRES: body uses one thread per rank, and groups have all ranks.
inline Recording record(int world, int to, const std::function<void(Communicator&)>& body) {
  std::vector<Recording> parts(static_cast<std::size_t>(world));
  auto comms = make_thread_world(world);
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r) {
    const auto i = static_cast<std::size_t>(r);
    threads.emplace_back([&, i, inner = std::move(comms[i])]() mutable {
      RecordingComm comm(std::move(inner), to, parts[i]);
      body(comm);
    });
  }
  for (std::thread& t : threads) t.join();
  Recording all;
  for (Recording& part : parts) {
    all.insert(all.end(), std::make_move_iterator(part.begin()),
               std::make_move_iterator(part.end()));
  }
  return all;
}

// The communicator of the rank under test. Messages arrive in the order of the recording, tag by
// tag. A missing message, or one of another size than expected, is a CommError, as elsewhere.
class ReplayComm final : public Communicator {
 public:
  // REQUIRES: messages outlive the object.
  ReplayComm(int rank, int world, const Recording& messages)
      : ReplayComm(rank, world, std::make_shared<Inbox>(messages)) {}

  std::string_view transport() const noexcept override { return "replay"; }

 protected:
  std::uint64_t do_start_send(int, int, std::span<const std::byte>) override { return 1; }

  std::uint64_t do_start_recv(int peer, int tag, std::span<std::byte> bytes) override {
    do_check();
    auto& [next, queue] = inbox_->queues[{number_, peer, tag}];
    if (next == queue.size()) throw CommError(concat("nothing came from rank ", peer));
    const auto& message = queue[next++]->bytes;
    if (message.size() != bytes.size()) {
      throw CommError(
          concat("rank ", peer, " sent ", message.size(), " bytes, expected ", bytes.size()));
    }
    std::copy(message.begin(), message.end(), bytes.begin());
    return 1;
  }

  bool do_test(std::uint64_t) override { return true; }
  void do_wait(std::uint64_t, std::chrono::steady_clock::time_point) override {}
  std::unique_ptr<Communicator> do_group(std::span<const int>) override {
    return std::unique_ptr<Communicator>(new ReplayComm(rank(), size(), inbox_));
  }
  void do_check() override {
    if (!inbox_->failure.empty()) throw CommError(inbox_->failure);
  }
  void do_fail(std::string_view reason) noexcept override {
    if (inbox_->failure.empty()) inbox_->failure = reason;
  }

 private:
  struct Inbox {
    explicit Inbox(const Recording& messages) {
      for (const Message& m : messages) queues[{m.comm, m.from, m.tag}].second.push_back(&m);
    }
    std::map<std::tuple<int, int, int>, std::pair<std::size_t, std::vector<const Message*>>> queues;
    int made = 0;
    std::string failure;
  };

  ReplayComm(int rank, int world, std::shared_ptr<Inbox> inbox)
      : Communicator(rank, world), inbox_(std::move(inbox)), number_(inbox_->made++) {}

  const std::shared_ptr<Inbox> inbox_;
  const int number_;
};

}  // namespace pride::testing
