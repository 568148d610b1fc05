// The public calls of every transport: checks, counters, error texts, and all collectives except
// the sums.
// SPDX-License-Identifier: Apache-2.0
#include "pride/communicator.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "comm/front_door.h"
#include "pride/error.h"

namespace pride {
namespace {

constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24 * 365);
constexpr std::size_t kScattered = std::size_t{1} << 16;  // bytes from which a broadcast scatters

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

}  // namespace

Communicator::Communicator(int rank, int size) : rank_(rank), size_(size) {
  PRIDE_CHECK(size >= 1 && rank >= 0 && rank < size, "Communicator: rank ", rank, " of ", size);
}

Communicator::~Communicator() = default;

// --- The guard around every public call. --------------------------------------------------------

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

void Communicator::count(const Traffic& more) noexcept { traffic_ = traffic_ + more; }

Communicator::Scope::Scope(Communicator& comm, std::string what)
    : comm_(comm), outer_(std::move(comm.what_)) {
  comm_.what_ = outer_.empty() ? std::move(what) : concat(outer_, ", ", what);
}

Communicator::Scope::~Scope() { comm_.what_ = std::move(outer_); }

// --- Point to point. ----------------------------------------------------------------------------

void Communicator::check_peer(const char* operation, int peer, int tag) const {
  PRIDE_CHECK(peer >= 0 && peer < size_ && peer != rank_, operation, ": peer ", peer, " on rank ",
              rank_, " of ", size_, ", must be another rank");
  PRIDE_CHECK(tag >= 0 && tag < kUserTags, operation, ": tag ", tag, ", must be in [0, ", kUserTags,
              ")");
}

void Communicator::refuse_messages() const {
  throw InvalidArgument(concat("transport ", transport(), " supports only collectives"));
}
std::uint64_t Communicator::do_start_send(int, int, ConstBytes) { refuse_messages(); }
std::uint64_t Communicator::do_start_recv(int, int, Bytes) { refuse_messages(); }
bool Communicator::do_test(std::uint64_t) { refuse_messages(); }
void Communicator::do_wait(std::uint64_t, Deadline) { refuse_messages(); }

Ticket Communicator::start_send(int peer, int tag, ConstBytes bytes) {
  check_peer("start_send", peer, tag);
  return guarded("start_send", [&] {
    const Ticket ticket{do_start_send(peer, tag, bytes)};
    count({.bytes_sent = bytes.size(), .messages_sent = 1});
    return ticket;
  });
}

Ticket Communicator::start_recv(int peer, int tag, Bytes bytes) {
  check_peer("start_recv", peer, tag);
  return guarded("start_recv", [&] {
    const Ticket ticket{do_start_recv(peer, tag, bytes)};
    count({.bytes_received = bytes.size(), .messages_received = 1});
    return ticket;
  });
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
  if (!pending) return;
  guarded("wait", [&] {
    const Deadline until = deadline();
    for (Ticket& ticket : tickets) {
      if (const auto id = std::exchange(ticket.id, 0)) do_wait(id, until);
    }
  });
}

// --- Collectives. -------------------------------------------------------------------------------

// Receives are posted first, so that arriving messages find their buffers.
void Communicator::do_all_to_all_v(int tag, std::span<const Outgoing> send,
                                   std::span<const Incoming> recv, Deadline deadline) {
  std::vector<std::uint64_t> pending;
  pending.reserve(send.size() + recv.size());
  for (const Incoming& m : recv) pending.push_back(do_start_recv(m.from, tag, m.bytes));
  for (const Outgoing& m : send) pending.push_back(do_start_send(m.to, tag, m.bytes));
  for (const std::uint64_t id : pending) do_wait(id, deadline);
}

void Communicator::do_all_gather_v(int tag, std::span<const ConstBytes> mine,
                                   std::span<const Incoming> all, Deadline deadline) {
  std::vector<Outgoing> send;
  send.reserve(mine.size() * static_cast<std::size_t>(size_));
  for (const int to : others()) {
    for (const ConstBytes bytes : mine) send.push_back({to, bytes});
  }
  do_all_to_all_v(tag, send, all, deadline);
}

std::vector<int> Communicator::others() const {
  std::vector<int> ranks;
  for (int i = 1; i < size_; ++i) ranks.push_back((rank_ + i) % size_);
  return ranks;
}

// exchange() and gather_v() carry the other collectives. They count; their callers are guarded.
void Communicator::exchange(int tag, std::span<const Outgoing> send,
                            std::span<const Incoming> recv) {
  Traffic traffic{.messages_sent = send.size(), .messages_received = recv.size()};
  for (const Outgoing& m : send) traffic.bytes_sent += m.bytes.size();
  for (const Incoming& m : recv) traffic.bytes_received += m.bytes.size();
  do_all_to_all_v(tag, send, recv, deadline());
  count(traffic);
}

// Slice i of `all` becomes rank i's `mine`.
void Communicator::gather(int tag, ConstBytes mine, Bytes all) {
  std::vector<Incoming> recv;
  for (const int from : others())
    recv.push_back({from, all.subspan(mine.size() * from, mine.size())});
  gather_v(tag, {&mine, 1}, recv);
  copy_bytes(mine, all.subspan(mine.size() * rank_, mine.size()));
}

void Communicator::gather_v(int tag, std::span<const ConstBytes> mine,
                            std::span<const Incoming> all) {
  const auto peers = static_cast<std::uint64_t>(size_ - 1);
  Traffic traffic{.messages_sent = peers * mine.size(), .messages_received = all.size()};
  for (const ConstBytes bytes : mine) traffic.bytes_sent += peers * bytes.size();
  for (const Incoming& m : all) traffic.bytes_received += m.bytes.size();
  do_all_gather_v(tag, mine, all, deadline());
  count(traffic);
}

void Communicator::all_to_all(ConstBytes send, Bytes recv) {
  PRIDE_CHECK(send.size() == recv.size() && send.size() % size_ == 0, "all_to_all: ", send.size(),
              " bytes out, ", recv.size(), " in, must be equal and a multiple of ", size_);
  PRIDE_CHECK(!overlap(send, recv), "all_to_all: the buffers overlap");
  guarded("all_to_all", [&] {
    const auto out = slices(send, size_);
    const auto in = slices(recv, size_);
    std::vector<Outgoing> outgoing;
    std::vector<Incoming> incoming;
    for (const int i : others()) {
      outgoing.push_back({i, out[i]});
      incoming.push_back({i, in[i]});
    }
    copy_bytes(out[rank_], in[rank_]);
    exchange(kTagAllToAll, outgoing, incoming);
  });
}

void Communicator::all_to_all_v(std::span<const Outgoing> send, std::span<const Incoming> recv) {
  for (const Outgoing& m : send) check_peer("all_to_all_v", m.to, 0);
  for (const Incoming& m : recv) check_peer("all_to_all_v", m.from, 0);
  guarded("all_to_all_v", [&] { exchange(kTagAllToAllV, send, recv); });
}

void Communicator::all_gather(ConstBytes mine, Bytes all) {
  PRIDE_CHECK(all.size() == mine.size() * size_, "all_gather: ", mine.size(), " bytes in, ",
              all.size(), " out, must be ", size_, " times as many");
  const Bytes own = all.subspan(mine.size() * rank_, mine.size());
  PRIDE_CHECK(mine.data() == own.data() || !overlap(mine, all),
              "all_gather: `mine` overlaps `all`, but is not its slice ", rank_);
  guarded("all_gather", [&] { gather(kTagAllGather, mine, all); });
}

void Communicator::all_gather_v(std::span<const ConstBytes> mine, std::span<const Incoming> all) {
  for (const Incoming& m : all) check_peer("all_gather_v", m.from, 0);
  guarded("all_gather_v", [&] { gather_v(kTagAllGatherV, mine, all); });
}

// Long messages: the root scatters them, then all gather the rest, so that the root sends two times
// their bytes at most, however many ranks there are.
void Communicator::broadcast(Bytes bytes, int root) {
  PRIDE_CHECK(root >= 0 && root < size_, "broadcast: root ", root, " of ", size_);
  const bool scatters = size_ > 2 && bytes.size() >= kScattered;
  const std::size_t shard = scatters ? (bytes.size() + size_ - 1) / size_ : bytes.size();
  const auto part = [&](int i) {
    const std::size_t begin = scatters ? std::min(shard * i, bytes.size()) : 0;
    return bytes.subspan(begin, std::min(shard, bytes.size() - begin));
  };
  guarded("broadcast", [&] {
    std::vector<Outgoing> send;
    for (const int to : rank_ == root ? others() : std::vector<int>{}) {
      send.push_back({to, part(to)});
    }
    const Incoming mine{root, part(rank_)};
    exchange(kTagBroadcast, send, {&mine, rank_ == root ? 0u : 1u});
    if (!scatters) return;
    send.clear();
    std::vector<Incoming> rest;
    for (const int i : others()) {
      if (i != root) send.push_back({i, part(rank_)});
      if (rank_ != root) rest.push_back({i, part(i)});
    }
    exchange(kTagBroadcastRest, send, rest);
  });
}

void Communicator::barrier() {
  guarded("barrier", [&] { gather(kTagBarrier, {}, {}); });
}

// --- Groups. ------------------------------------------------------------------------------------

std::unique_ptr<Communicator> Communicator::group(std::span<const int> members) {
  auto made = do_group(members);
  made->timeout_ = timeout_;
  return made;
}

// The barrier has a deadline; a transport's construction of a communicator may not have one.
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
    gather(kTagSplit, std::as_bytes(std::span(&mine, 1)),
           std::as_writable_bytes(std::span(choices)));

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
