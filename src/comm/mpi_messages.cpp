// Messages over MPI.
// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi_messages.h"

#include <iterator>

#include "pride/error.h"

namespace pride::mpi {
namespace {

// Most chunks of one message that MPI holds at a time.
constexpr std::size_t kWindow = 4;

// Time for which a failed rank keeps serving MPI, so that its pending operations can end.
constexpr std::chrono::milliseconds kGrace{250};

[[noreturn]] void fail_chunk(const std::string& text, int code) {
  try {
    check(code, "MPI_Test");
  } catch (const CommError& e) {
    throw CommError(concat(text, ": ", e.what()));
  }
  throw CommError(text);
}

bool ended(MPI_Request& request) noexcept {
  int done = 1;
  if (request != MPI_REQUEST_NULL && MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
    return true;
  }
  return done != 0;
}

}  // namespace

std::string Messages::Operation::text() const {
  return concat(is_send ? "send of " : "receive of ", size, is_send ? " bytes to" : " bytes from",
                " rank ", peer, " (tag ", tag, ")");
}

std::uint64_t Messages::start_send(int peer, int tag, std::span<const std::byte> bytes) {
  auto& [id, op] = begin(
      {.is_send = true, .peer = peer, .tag = tag, .size = bytes.size(), .source = bytes.data()});
  auto& queue = sends_[{peer, tag}];
  queue.push_back(&op);
  if (queue.size() == 1 && send_chunks(op)) sends_.erase({peer, tag});
  return id;
}

std::uint64_t Messages::start_recv(int peer, int tag, std::span<std::byte> bytes) {
  auto& [id, op] = begin({.peer = peer, .tag = tag, .size = bytes.size(), .target = bytes.data()});
  expected_[{peer, tag}].push_back(&op);
  return id;
}

bool Messages::test(std::uint64_t id) {
  look();
  if (!advance(pending_.find(id))) return false;
  pending_.release(id);
  return true;
}

Messages::Pending::Entry& Messages::begin(Operation op) {
  op.total = op.size / chunk_ + 1;
  auto& entry = pending_.make();
  entry.value = std::move(op);
  return entry;
}

// Size of chunk k: all are full but the last, which may be empty.
int Messages::length(const Operation& op, std::size_t k) const {
  return static_cast<int>(std::min(chunk_, op.size - k * chunk_));
}

// Messages with one peer and tag keep their order: the next begins after the last chunk of the
// one before.
template <typename Begin>
void Messages::advance_queues(Queues& queues, const Begin& begin) {
  for (auto it = queues.begin(); it != queues.end();) {
    auto& queue = it->second;
    while (!queue.empty() && begin(*queue.front())) queue.pop_front();
    it = queue.empty() ? queues.erase(it) : std::next(it);
  }
}

void Messages::look() {
  advance_queues(expected_, [this](Operation& op) { return begin_chunks(op); });
  advance_queues(sends_, [this](Operation& op) { return send_chunks(op); });
}

// Starts chunks while MPI holds fewer than kWindow of this message, so that messages to all peers
// take turns. Streams written one after the other at full rate collide on some links while others
// are idle. True if all chunks have begun.
bool Messages::send_chunks(Operation& op) {
  while (op.chunks.size() < op.total) {
    advance(op);
    const std::size_t k = op.chunks.size();
    if (k - op.done >= kWindow) return false;
    check(MPI_Isend(op.source + k * chunk_, length(op, k), MPI_BYTE, op.peer, op.tag, comm_,
                    &op.chunks.emplace_back(MPI_REQUEST_NULL)),
          "MPI_Isend");
    ++begun_;
  }
  return true;
}

// True if all chunks have begun. Throws if one has another size than expected.
bool Messages::begin_chunks(Operation& op) {
  while (op.chunks.size() < op.total) {
    const std::size_t k = op.chunks.size();
    int found = 0, got = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    check(MPI_Improbe(op.peer, op.tag, comm_, &found, &message, &status), "MPI_Improbe");
    if (!found) return false;
    check(MPI_Get_count(&status, MPI_BYTE, &got), "MPI_Get_count");
    check_size(op, k, got);
    check(MPI_Imrecv(op.target + k * chunk_, got, MPI_BYTE, &message,
                     &op.chunks.emplace_back(MPI_REQUEST_NULL)),
          "MPI_Imrecv");
    ++begun_;
  }
  return true;
}

void Messages::check_size(const Operation& op, std::size_t k, int got) const {
  if (got == length(op, k)) return;
  const bool more_follows = static_cast<std::size_t>(got) == chunk_;
  throw CommError(concat(op.text(), ": sizes differ: rank ", op.peer, " sends ",
                         k * chunk_ + static_cast<std::size_t>(got),
                         more_follows ? " bytes or more" : " bytes"));
}

// True if complete.
bool Messages::advance(Operation& op) {
  for (; op.done < op.chunks.size(); ++op.done) {
    int done = 0;
    const int code = MPI_Test(&op.chunks[op.done], &done, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS) fail_chunk(op.text(), code);
    if (!done) return false;
  }
  return op.done == op.total;
}

bool Messages::give_up(MPI_Request& also) noexcept {
  bool any = also != MPI_REQUEST_NULL, open = true;
  expected_.clear();
  sends_.clear();
  const auto enough = Clock::now() + kGrace;
  for (Backoff backoff(family_->crowded()); open && Clock::now() < enough; backoff.pause()) {
    open = !ended(also);
    pending_.for_each([&](Operation& op) {
      any = true;
      for (MPI_Request& request : op.chunks) open |= !ended(request);
    });
  }
  pending_.clear();
  return any;
}

}  // namespace pride::mpi
