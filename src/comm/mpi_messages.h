// Messages: sends and receives over MPI's point-to-point messages, in chunks, polled. What MpiComm
// and HybridComm have in common; no Communicator in here.
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
#include "comm/ticket_table.h"

namespace pride::mpi {

// Between two looks at a pending operation: nothing at first, then give way to ranks that share the
// core, then sleep, up to 200 us at a time. Or never sleep.
class Backoff {
 public:
  explicit Backoff(bool crowded, bool sleeps = true)
      : spins_(crowded ? 8 : 64), yields_(crowded ? 8 : 256), sleeps_(sleeps) {}

  // True now and then: time to look for what is rarer.
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

  // Something came: more may follow soon.
  void hurry() { sleep_ = kShortest; }

 private:
  static constexpr std::chrono::microseconds kShortest{10};
  int spins_, yields_;
  bool sleeps_;
  std::int64_t round_ = 0;
  std::chrono::microseconds sleep_ = kShortest;
};

// Where a message goes or comes from, for MPI, and as the errors name it.
struct Address {
  int process = 0, mpi_tag = 0;
  int peer = 0, tag = 0;
};

// The pending sends and receives of one communicator. One thread at a time may use an object;
// several objects may share an MPI communicator if their addresses differ.
//
// A message is received only once its size is known to be right (MPI_Improbe, then MPI_Imrecv). A
// receive posted in advance would be simpler, but then Open MPI 4.1.4 was seen to corrupt the heap
// when a large message was longer than its buffer.
class Messages {
 public:
  using Clock = std::chrono::steady_clock;

  Messages(MPI_Comm comm, std::shared_ptr<MpiFamily> family)
      : comm_(comm), family_(std::move(family)) {}

  std::uint64_t start_send(const Address& to, std::span<const std::byte> bytes);
  std::uint64_t start_recv(const Address& from, std::span<std::byte> bytes);

  // True if complete; the id is then gone. Looks first. Throws CommError.
  bool test(std::uint64_t id);

  // Begins to receive what has come, and to send what there is room for, whatever it belongs to.
  void look();

  // Chunks that look() and the starts have begun, ever.
  std::size_t begun() const noexcept { return begun_; }

  // "receive of 12 bytes from rank 1 (tag 7)"
  std::string text(std::uint64_t id) { return pending_.find(id).text(); }

  // Forgets the receives that have not begun, and serves MPI until all else has ended, for a grace
  // at most; `also` are served with them. True if anything was pending. docs/transports.md says
  // what MPI may still touch.
  bool give_up(std::span<MPI_Request> also = {}) noexcept;

  std::size_t chunk() const noexcept { return chunk_; }

 private:
  // One send or receive: its chunks, in order.
  struct Operation {
    bool is_send = false;
    Address at = {};
    std::size_t size = 0;
    const std::byte* source = nullptr;     // of a send
    std::byte* target = nullptr;           // of a receive
    std::size_t total = 0;                 // chunks, the last one included
    std::vector<MPI_Request> chunks = {};  // those that MPI has begun
    std::size_t done = 0;

    std::string text() const;
  };
  using Pending = TicketTable<Operation>;

  Pending::Entry& begin(Operation op);
  int length(const Operation& op, std::size_t k) const;
  void look_for_messages();
  bool begin_chunks(Operation& op);
  bool first_of_its_kind(const Operation& op) const;
  bool send_chunks(Operation& op);
  void check_size(const Operation& op, std::size_t k, int got) const;
  bool advance(Operation& op);

  MPI_Comm comm_;
  const std::size_t chunk_ = chunk_limit();
  std::shared_ptr<MpiFamily> family_;
  Pending pending_;
  // receives whose message has not come, by process and tag, in the order in which they were
  // started
  std::map<std::pair<int, int>, std::deque<Operation*>> expected_;
  std::vector<Operation*> sends_;  // that have not begun their last chunk
  std::size_t begun_ = 0;
};

}  // namespace pride::mpi
