// The front door of every transport: checks, counters, error texts, and the collectives.
// SPDX-License-Identifier: Apache-2.0
#include "pride/communicator.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "comm/bf16_sum.h"
#include "pride/error.h"

namespace pride {
namespace {

using Clock = std::chrono::steady_clock;
using ConstBytes = std::span<const std::byte>;
using Bytes = std::span<std::byte>;

// Tags below belong to the caller; each collective has its own, so that ranks that disagree on
// which one they are in never exchange bytes.
constexpr int kUserTags = 1024;
enum ReservedTag : int {
  kTagAllToAll = kUserTags,
  kTagAllToAllV,
  kTagAllGather,
  kTagAllGatherV,
  kTagBroadcast,
  kTagBarrier,
  kTagSumScatter,
  kTagSumGather,
  kTagSplit,
  kTagNativeSum,  // and the next ones: one for each SumType, so this stays the last
};

constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24 * 365);

void copy_bytes(ConstBytes from, Bytes to) {
  if (!from.empty() && from.data() != to.data()) std::memcpy(to.data(), from.data(), from.size());
}

bool overlap(ConstBytes a, ConstBytes b) {
  const std::less<const std::byte*> before;
  return !a.empty() && !b.empty() && before(a.data(), b.data() + b.size()) &&
         before(b.data(), a.data() + a.size());
}

// Equal parts, in rank order.
template <typename Byte>
std::vector<std::span<Byte>> slices(std::span<Byte> whole, int parts) {
  const std::size_t each = whole.size() / static_cast<std::size_t>(parts);
  std::vector<std::span<Byte>> list;
  list.reserve(static_cast<std::size_t>(parts));
  for (int i = 0; i < parts; ++i) list.push_back(whole.subspan(each * i, each));
  return list;
}

// Parts that differ by at most one coordinate, in rank order.
template <typename T>
std::vector<std::span<T>> shards(std::span<T> values, int parts) {
  const std::size_t base = values.size() / parts;
  const std::size_t longer = values.size() % parts;
  std::vector<std::span<T>> list;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(parts); ++i) {
    const std::size_t n = base + (i < longer ? 1 : 0);
    list.push_back(values.subspan(begin, n));
    begin += n;
  }
  return list;
}

template <typename T>
void add_to(std::span<const T> row, std::span<T> sum) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = static_cast<T>(sum[i] + row[i]);
}

}  // namespace

Communicator::Communicator(int rank, int size) : rank_(rank), size_(size) {
  PRIDE_CHECK(size >= 1 && rank >= 0 && rank < size, "Communicator: rank ", rank, " of ", size);
}

Communicator::~Communicator() = default;

// --- The guard around every public call. --------------------------------------------------------

// Runs the body of a public call. If it throws, the world is told before the caller's buffers can
// go out of scope, and a CommError gets the names of scope, call and rank. Misuse changes nothing.
// A buffer that the body sends or receives must be declared outside it: what is declared inside is
// gone before the transport lets go of it, and another rank may still be writing to it.
template <typename Body>
auto Communicator::guarded(const char* operation, Body&& body) {
  if (operation_ != nullptr) return body();
  struct Reset {
    const char*& operation;
    ~Reset() { operation = nullptr; }
  } reset{operation_ = operation};
  try {
    do_check();
    return body();
  } catch (const CommError& e) {
    give_up(e.what());
  } catch (const InvalidArgument&) {
    throw;
  } catch (const std::exception& e) {
    fail(concat(operation, ": ", e.what()));
    throw;
  }
}

void Communicator::give_up(const std::string& why) {
  const std::string where = concat(what_, what_.empty() ? "" : ": ", operation_, ": ");
  do_fail(where + why);
  throw CommError(concat(where, "rank ", rank_, " of ", size_, ": ", why));
}

void Communicator::fail(std::string_view reason) noexcept {
  if (what_.empty()) return do_fail(reason);
  try {
    do_fail(concat(what_, ": ", reason));
  } catch (...) {
    do_fail(reason);  // no memory for the longer text
  }
}

void Communicator::set_timeout(std::chrono::milliseconds timeout) {
  PRIDE_CHECK(timeout.count() > 0, "set_timeout: ", timeout.count(), " ms, must be above 0");
  timeout_ = std::min(timeout, kLongestTimeout);
}

void Communicator::count(const Traffic& more) noexcept {
  traffic_.bytes_sent += more.bytes_sent;
  traffic_.bytes_received += more.bytes_received;
  traffic_.messages_sent += more.messages_sent;
  traffic_.messages_received += more.messages_received;
}

Communicator::Scope::Scope(Communicator& comm, std::string what)
    : comm_(comm), outer_(std::move(comm.what_)) {
  comm_.what_ = outer_.empty() ? std::move(what) : concat(outer_, ", ", what);
}

Communicator::Scope::~Scope() { comm_.what_ = std::move(outer_); }

// --- Point to point. ----------------------------------------------------------------------------

void Communicator::check_peer(const char* operation, int peer, int tag) const {
  PRIDE_CHECK(peer >= 0 && peer < size_ && peer != rank_, operation, ": peer ", peer, " on rank ",
              rank_, " of ", size_);
  PRIDE_CHECK(tag >= 0 && tag < kUserTags, operation, ": tag ", tag, ", must be in [0, ", kUserTags,
              ")");
}

Ticket Communicator::post_send(int peer, int tag, ConstBytes bytes) {
  const Ticket ticket{do_start_send(peer, tag, bytes)};
  count({.bytes_sent = bytes.size(), .messages_sent = 1});
  return ticket;
}

Ticket Communicator::post_recv(int peer, int tag, Bytes bytes) {
  const Ticket ticket{do_start_recv(peer, tag, bytes)};
  count({.bytes_received = bytes.size(), .messages_received = 1});
  return ticket;
}

void Communicator::finish(std::span<Ticket> tickets) {
  const auto deadline = Clock::now() + timeout_;
  for (Ticket& ticket : tickets) {
    if (const auto id = std::exchange(ticket.id, 0)) do_wait(id, deadline);
  }
}

Ticket Communicator::start_send(int peer, int tag, ConstBytes bytes) {
  check_peer("start_send", peer, tag);
  return guarded("start_send", [&] { return post_send(peer, tag, bytes); });
}

Ticket Communicator::start_recv(int peer, int tag, Bytes bytes) {
  check_peer("start_recv", peer, tag);
  return guarded("start_recv", [&] { return post_recv(peer, tag, bytes); });
}

bool Communicator::test(Ticket& ticket) {
  if (ticket.id == 0) return true;
  return guarded("test", [&] {
    if (!do_test(ticket.id)) return false;
    ticket.id = 0;
    return true;
  });
}

void Communicator::wait(Ticket& ticket) { wait_all({&ticket, 1}); }

void Communicator::wait_all(std::span<Ticket> tickets) {
  const bool pending =
      std::any_of(tickets.begin(), tickets.end(), [](const Ticket& t) { return t.id != 0; });
  if (pending) guarded("wait", [&] { finish(tickets); });
}

// --- Collectives. -------------------------------------------------------------------------------

// One message from each rank to each other one. Receives are posted first, so that messages find
// their place ready; sends begin with the next rank, so that not all press on rank 0 at once.
void Communicator::swap_all(int tag, std::span<const ConstBytes> send,
                            std::span<const Bytes> recv) {
  std::vector<Ticket> tickets;
  tickets.reserve(2 * static_cast<std::size_t>(size_));
  for (int i = 1; i < size_; ++i) {
    const int from = (rank_ + size_ - i) % size_;
    tickets.push_back(post_recv(from, tag, recv[from]));
  }
  for (int i = 1; i < size_; ++i) {
    const int to = (rank_ + i) % size_;
    tickets.push_back(post_send(to, tag, send[to]));
  }
  copy_bytes(send[rank_], recv[rank_]);
  finish(tickets);
}

void Communicator::all_to_all(ConstBytes send, Bytes recv) {
  PRIDE_CHECK(send.size() == recv.size() && send.size() % size_ == 0, "all_to_all: ", send.size(),
              " bytes out, ", recv.size(), " in, must be equal and a multiple of ", size_);
  PRIDE_CHECK(!overlap(send, recv), "all_to_all: the buffers overlap");
  guarded("all_to_all", [&] { swap_all(kTagAllToAll, slices(send, size_), slices(recv, size_)); });
}

void Communicator::all_to_all_v(std::span<const ConstBytes> send, std::span<const Bytes> recv) {
  const auto world = static_cast<std::size_t>(size_);
  PRIDE_CHECK(send.size() == world && recv.size() == world, "all_to_all_v: ", send.size(),
              " buffers out, ", recv.size(), " in, must be ", world);
  PRIDE_CHECK(send[rank_].size() == recv[rank_].size(), "all_to_all_v: own part has ",
              send[rank_].size(), " bytes out, ", recv[rank_].size(), " in");
  guarded("all_to_all_v", [&] { swap_all(kTagAllToAllV, send, recv); });
}

void Communicator::all_gather(ConstBytes mine, Bytes all) {
  PRIDE_CHECK(all.size() == mine.size() * size_, "all_gather: ", mine.size(), " bytes in, ",
              all.size(), " out, must be ", size_, " times as many");
  const Bytes own = all.subspan(mine.size() * rank_, mine.size());
  PRIDE_CHECK(mine.data() == own.data() || !overlap(mine, all),
              "all_gather: `mine` overlaps `all` and is not its slice ", rank_);
  const std::vector<ConstBytes> send(size_, mine);
  guarded("all_gather", [&] { swap_all(kTagAllGather, send, slices(all, size_)); });
}

void Communicator::all_gather_v(ConstBytes mine, std::span<const Bytes> all) {
  const auto world = static_cast<std::size_t>(size_);
  PRIDE_CHECK(all.size() == world, "all_gather_v: ", all.size(), " buffers, must be ", world);
  PRIDE_CHECK(all[rank_].size() == mine.size(), "all_gather_v: ", mine.size(), " bytes in, ",
              all[rank_].size(), " in the own buffer");
  const std::vector<ConstBytes> send(world, mine);
  guarded("all_gather_v", [&] { swap_all(kTagAllGatherV, send, all); });
}

// A binomial tree. With v the distance from the root, the parent of v is v without its lowest set
// bit, and its children are v + 2^k for each 2^k below that bit.
void Communicator::broadcast(Bytes bytes, int root) {
  PRIDE_CHECK(root >= 0 && root < size_, "broadcast: root ", root, " of ", size_);
  guarded("broadcast", [&] {
    const int v = (rank_ - root + size_) % size_;
    int bit = 1;
    while (bit < size_ && (v & bit) == 0) bit <<= 1;
    if (v != 0) {
      Ticket from_parent = post_recv((v - bit + root) % size_, kTagBroadcast, bytes);
      finish({&from_parent, 1});
    }
    std::vector<Ticket> tickets;
    for (bit >>= 1; bit > 0; bit >>= 1) {
      if (v + bit >= size_) continue;
      tickets.push_back(post_send((v + bit + root) % size_, kTagBroadcast, bytes));
    }
    finish(tickets);
  });
}

// Dissemination: after round k a rank has heard, at first or second hand, of 2^(k+1) ranks.
void Communicator::barrier() {
  guarded("barrier", [&] {
    for (int step = 1; step < size_; step <<= 1) {
      Ticket tickets[] = {post_recv((rank_ + size_ - step) % size_, kTagBarrier, {}),
                          post_send((rank_ + step) % size_, kTagBarrier, {})};
      finish(tickets);
    }
  });
}

// Each rank sums its shard over the ranks, first to last, then all gather the shards. `rows`, which
// takes what comes for the shard, is the caller's, who declares it outside its guarded body.
template <typename T>
void Communicator::add_in_rank_order(std::span<T> values, std::vector<T>& rows) {
  const auto parts = shards(values, size_);
  const std::span<T> own = parts[rank_];
  rows.resize(own.size() * size_);
  std::vector<ConstBytes> send;
  for (const auto part : parts) send.push_back(std::as_bytes(part));
  swap_all(kTagSumScatter, send, slices(std::as_writable_bytes(std::span(rows)), size_));

  const auto row = [&](int i) { return std::span(rows).subspan(own.size() * i, own.size()); };
  for (int i = 1; i < size_; ++i) add_to(std::span<const T>(row(i)), row(0));
  copy_bytes(std::as_bytes(row(0)), std::as_writable_bytes(own));

  send.assign(size_, std::as_bytes(own));
  std::vector<Bytes> recv;
  for (const auto part : parts) recv.push_back(std::as_writable_bytes(part));
  swap_all(kTagSumGather, send, recv);
}

void Communicator::dense_sum(std::span<float> values) {
  std::vector<float> rows;
  guarded("dense_sum", [&] { add_in_rank_order(values, rows); });
}

// An all-reduce of the transport may not notice that sizes differ, so they are compared first.
template <typename T>
void Communicator::sum_natively(SumType type, std::span<T> values) {
  const std::uint64_t n = values.size();
  std::vector<std::uint64_t> sizes(size_);
  std::vector<T> rows;
  guarded("native_sum", [&] {
    const std::vector<ConstBytes> send(size_, std::as_bytes(std::span(&n, 1)));
    swap_all(kTagNativeSum + static_cast<int>(type), send,
             slices(std::as_writable_bytes(std::span(sizes)), size_));
    for (int i = 0; i < size_; ++i) {
      if (sizes[i] == n) continue;
      throw CommError(concat("expected ", n, " coordinates, rank ", i, " has ", sizes[i]));
    }
    if (!do_native_sum(type, std::as_writable_bytes(values))) add_in_rank_order(values, rows);
  });
}

void Communicator::native_sum(std::span<float> values) { sum_natively(SumType::kFloat32, values); }

void Communicator::native_sum(std::span<std::int8_t> values) {
  sum_natively(SumType::kInt8, values);
}

void Communicator::native_sum(std::span<std::int16_t> values) {
  sum_natively(SumType::kInt16, values);
}

void Communicator::native_sum(std::span<std::int32_t> values) {
  sum_natively(SumType::kInt32, values);
}

void Communicator::native_sum(std::span<BFloat16> values) {
  sum_natively(SumType::kBFloat16, values);
}

// --- Groups. ------------------------------------------------------------------------------------

std::unique_ptr<Communicator> Communicator::group(std::span<const int> members) {
  auto made = do_group(members);
  made->timeout_ = timeout_;
  return made;
}

// The barrier has a deadline; what a transport does to make a communicator may not have one.
std::unique_ptr<Communicator> Communicator::duplicate() {
  return guarded("duplicate", [&] {
    barrier();
    std::vector<int> members(size_);
    std::iota(members.begin(), members.end(), 0);
    return group(members);
  });
}

std::unique_ptr<Communicator> Communicator::split(int colour, int key) {
  struct Choice {
    int colour, key;
  };
  const Choice mine{colour, key};
  std::vector<Choice> choices(size_);
  return guarded("split", [&] {
    const std::vector<ConstBytes> send(size_, std::as_bytes(std::span(&mine, 1)));
    swap_all(kTagSplit, send, slices(std::as_writable_bytes(std::span(choices)), size_));

    std::vector<int> members;
    for (int i = 0; i < size_; ++i) {
      if (choices[i].colour == colour) members.push_back(i);
    }
    std::stable_sort(members.begin(), members.end(),
                     [&](int a, int b) { return choices[a].key < choices[b].key; });
    return group(members);
  });
}

}  // namespace pride
