// Messages: sends and receives over MPI's point-to-point messages, in chunks, polled. Independent
// of Communicator.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/mpi_chunk.h"
#include "comm/mpi_family.h"
#include "pride/comm/ticket_table.h"

namespace pride::mpi {

// Back-off between two polls of a pending operation: none at first, then yields to ranks that share
// the core, then sleeps of up to 200 us if `sleeps`.
class Backoff {
 public:
  explicit Backoff(bool crowded, bool sleeps = true)
      : spins_(crowded ? 8 : 64), yields_(crowded ? 8 : 256), sleeps_(sleeps) {}

  // True periodically: time for rare checks.
  bool pause() {
    ++round_;
    if (round_ < spins_) return false;
    if (round_ < spins_ + yields_ || !sleeps_) {
      sched_yield();
      return round_ % 16 == 0;
    }
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(sleep_ * 2, std::chrono::microseconds(200));
    return true;
  }

  // Resets after a message: more may follow soon.
  void hurry() { sleep_ = kShortest; }

 private:
  static constexpr std::chrono::microseconds kShortest{10};
  int spins_, yields_;
  bool sleeps_;
  std::int64_t round_ = 0;
  std::chrono::microseconds sleep_ = kShortest;
};

// The pending sends and receives of one communicator. One thread at a time may use an object.
//
// A message is received only once its size has been checked (MPI_Improbe, then MPI_Imrecv). A
// receive posted in advance would be simpler, but Open MPI 4.1.4 corrupted the heap when a large
// message was longer than its buffer.
class Messages {
 public:
  using Clock = std::chrono::steady_clock;

  Messages(MPI_Comm comm, std::shared_ptr<MpiFamily> family)
      : comm_(comm), family_(std::move(family)) {}

  std::uint64_t start_send(int peer, int tag, std::span<const std::byte> bytes);
  std::uint64_t start_recv(int peer, int tag, std::span<std::byte> bytes);

  // True if complete; the id is then released. Polls first. Throws CommError.
  bool test(std::uint64_t id);

  // Starts receives of arrived messages, and further chunks of sends, of any operation.
  void look();

  // Total number of chunks started by look() and the starts.
  std::size_t begun() const noexcept { return begun_; }

  // "receive of 12 bytes from rank 1 (tag 7)"
  std::string text(std::uint64_t id) { return pending_.find(id).text(); }

  // Cancels the receives that have not begun. Serves MPI until all other operations and the
  // request `also` have ended, for kGrace at most. True if anything was pending. Buffers that MPI
  // may still touch: docs/transports.md.
  bool give_up(MPI_Request& also) noexcept;

  std::size_t chunk() const noexcept { return chunk_; }

 private:
  // One send or receive: its chunks, in order.
  struct Operation {
    bool is_send = false;
    int peer = 0, tag = 0;
    std::size_t size = 0;
    const std::byte* source = nullptr;     // of a send
    std::byte* target = nullptr;           // of a receive
    std::size_t total = 0;                 // chunks, the last one included
    std::vector<MPI_Request> chunks = {};  // started with MPI
    std::size_t done = 0;

    std::string text() const;
  };
  using Pending = TicketTable<Operation>;

  Pending::Entry& begin(Operation op);
  int length(const Operation& op, std::size_t k) const;
  bool begin_chunks(Operation& op);
  bool send_chunks(Operation& op);
  void check_size(const Operation& op, std::size_t k, int got) const;
  bool advance(Operation& op);

  MPI_Comm comm_;
  const std::size_t chunk_ = chunk_limit();
  std::shared_ptr<MpiFamily> family_;
  Pending pending_;
  // by peer and tag, in the order started: receives without an arrived message, and sends with
  // chunks that have not begun
  using Queues = std::map<std::pair<int, int>, std::deque<Operation*>>;
  template <typename Begin>
  static void advance_queues(Queues& queues, const Begin& begin);
  Queues expected_, sends_;
  std::size_t begun_ = 0;
};

}  // namespace pride::mpi
