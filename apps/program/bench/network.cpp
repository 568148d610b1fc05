// Ping-pong and all-to-all; each pattern is its buffers, a call, and the bytes that every rank must
// receive.
// SPDX-License-Identifier: Apache-2.0
#include "program/bench/network.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "program/clock.h"

namespace pride::inline program {
namespace {

constexpr int kTag = 0;
constexpr int kRoundTrips = 20;
constexpr std::size_t kLargest = std::size_t{64} << 20;   // bytes to all peers together
constexpr std::size_t kAllRanks = std::size_t{1} << 30;   // bytes of all ranks together
constexpr std::size_t kSmallest = std::size_t{16} << 10;  // bytes to each peer
constexpr double kLongEnough = 0.1;                       // s, of one call
constexpr double kBrieflyEnough = 0.01;

// `echo`: sends only after the other's bytes have arrived.
auto send_and_receive(Communicator& comm, int to, int from, bool echo = false) {
  return [=, &comm](std::span<const std::byte> out, std::span<std::byte> in) {
    Ticket receive = comm.start_recv(from, kTag, in);
    if (echo) comm.wait(receive);
    Ticket send = comm.start_send(to, kTag, out);
    comm.wait(receive);
    comm.wait(send);
  };
}

double pairs_latency(Communicator& comm, int other) {
  std::array<std::byte, 8> out{}, in{};
  comm.barrier();
  if (comm.rank() != 0 && comm.rank() != other) return 0;
  const int peer = comm.rank() == 0 ? other : 0;
  const auto round_trip = send_and_receive(comm, peer, peer, peer == 0);
  std::vector<double> all;
  for (int i = 0; i < kRoundTrips; ++i) {
    const auto start = std::chrono::steady_clock::now();
    round_trip(out, in);
    all.push_back(seconds_since(start) / 2);
  }
  return times_of(all).median_s;
}

double latency(Communicator& comm) {
  double slowest = 0;
  for (int other = 1; other < comm.size(); ++other) {
    slowest = std::max(slowest, pairs_latency(comm, other));
  }
  return largest_of(comm, comm.rank() == 0 ? slowest : 0);
}

// The best rate over message sizes, which double until one call takes long enough. Very large
// messages can be slower than a bucket's, because switches' queues overflow.
template <typename Call>
double rate_of(Communicator& comm, double seconds, std::size_t peers, Call&& call) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  const std::size_t largest = std::min(kLargest, kAllRanks / ranks) / peers;
  const double long_enough = seconds == kBriefly ? kBrieflyEnough : kLongEnough;
  double best = 0;
  std::vector<std::byte> out, in;
  for (std::size_t each = std::min(kSmallest, std::max<std::size_t>(largest, 1));; each *= 2) {
    out.resize(each * (peers + 1));  // a part for each peer and this rank
    in.resize(each * (peers + 1));
    const Times times = measure(
        comm, seconds / 8, 3, [&] { call(std::span<const std::byte>(out), std::span(in), each); });
    best = std::max(best, static_cast<double>(each * peers) / times.median_s);
    if (times.median_s >= long_enough || 2 * each > largest) return best;
  }
}

// With messages that take about kBrieflyEnough. A process's time is divided by its ranks.
double cpu_per_byte(Communicator& comm, double goodput) {
  const auto n = static_cast<std::size_t>(comm.size());
  const double wanted = goodput * kBrieflyEnough / static_cast<double>(n - 1);
  const auto each =
      static_cast<std::size_t>(std::clamp(wanted, 1024.0, static_cast<double>(kLargest / n)));
  const std::vector<std::byte> out(each * n);
  std::vector<std::byte> in(each * n);
  const double ranks_here = ranks_in_this_process(comm);
  comm.all_to_all(out, in);
  comm.barrier();
  const double start = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
  constexpr int kCalls = 5;
  for (int i = 0; i < kCalls; ++i) comm.all_to_all(out, in);
  comm.barrier();
  const double seconds = (cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - start) / ranks_here;
  return largest_of(comm, seconds / (kCalls * static_cast<double>(each * (n - 1))));
}

constexpr int kAll = -1;  // receiver: all ranks get the same bytes

// The byte at offset i of what rank `from` sends to rank `to`.
std::byte sent_byte(int from, int to, std::size_t i) {
  const auto mixed = (static_cast<std::uint32_t>(i) + 977u * static_cast<std::uint32_t>(from + 1) +
                      131071u * static_cast<std::uint32_t>(to + 2)) *
                     2654435761u;
  return static_cast<std::byte>(mixed >> 24);
}

// A part of a buffer, with its sender and receiver.
struct Part {
  int from, to;
};

std::vector<std::byte> bytes_of(const std::vector<Part>& parts, std::size_t part_size) {
  std::vector<std::byte> bytes(parts.size() * part_size);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const Part& part = parts[i / part_size];
    bytes[i] = sent_byte(part.from, part.to, i % part_size);
  }
  return bytes;
}

// One pattern on one rank: the parts, of equal size, that it sends and must receive.
struct Pattern {
  const char* name;
  double sent_share;    // share of the data that a rank sends
  std::size_t n_parts;  // number of parts of the data
  std::vector<Part> sent = {}, received = {};
  std::function<void(std::span<const std::byte> out, std::span<std::byte> in)> run = {};
  double ways = 1;  // number of times that a run sends the data, one after the other
};

Pattern ping_pong(Communicator& comm) {
  const int rank = comm.rank(), last = comm.size() - 1, peer = rank == 0 ? last : 0;
  if (rank != 0 && rank != last) return {"ping-pong", 1, 1, {}, {}, [](auto, auto) {}, 2};
  const auto run = send_and_receive(comm, peer, peer, rank == last);
  return {"ping-pong", 1, 1, {{rank, kAll}}, {{peer, kAll}}, run, 2};
}

Pattern shift(Communicator& comm) {
  const int rank = comm.rank(), n = comm.size(), before = (rank - 1 + n) % n;
  const auto run = send_and_receive(comm, (rank + 1) % n, before);
  return {"shift", 1, 1, {{rank, kAll}}, {{before, kAll}}, run};
}

// The share of the data that goes to other ranks.
double others_of(const Communicator& comm) { return (comm.size() - 1.0) / comm.size(); }

Pattern all_to_all(Communicator& comm) {
  const int rank = comm.rank();
  Pattern pattern{"all-to-all", others_of(comm), static_cast<std::size_t>(comm.size())};
  for (int r = 0; r < comm.size(); ++r) {
    pattern.sent.push_back({rank, r});
    pattern.received.push_back({r, rank});
  }
  pattern.run = [&comm](auto out, auto in) { comm.all_to_all(out, in); };
  return pattern;
}

Pattern all_gather(Communicator& comm) {
  Pattern pattern{"all-gather", others_of(comm), static_cast<std::size_t>(comm.size())};
  pattern.sent = {{comm.rank(), kAll}};
  for (int r = 0; r < comm.size(); ++r) pattern.received.push_back({r, kAll});
  pattern.run = [&comm](auto out, auto in) { comm.all_gather(out, in); };
  return pattern;
}

PatternCell measured(Communicator& comm, const Pattern& pattern, std::size_t bytes,
                     const PatternBench& how) {
  const std::size_t part = (bytes + pattern.n_parts - 1) / pattern.n_parts;
  PatternCell cell{.name = pattern.name, .bytes = part * pattern.n_parts};
  const auto out = bytes_of(pattern.sent, part), expected = bytes_of(pattern.received, part);
  std::vector in(expected.size(), std::byte{0x5A});
  cell.sent_share = pattern.sent_share;
  cell.times = measure(comm, how.seconds, how.least, [&] { pattern.run(out, in); });
  for (double* t : {&cell.times.min_s, &cell.times.median_s, &cell.times.p99_s}) *t /= pattern.ways;
  cell.wrong_ranks = count_ranks(comm, in != expected);
  return cell;
}

// Small integers, so that every order of additions is exact.
float term(int rank, std::size_t i) {
  return static_cast<float>(std::to_integer<int>(sent_byte(rank, kAll, i)) - 128);
}

// Sums in place, so each run sums the previous result. Therefore it measures zeros, and checks one
// more run with other values.
PatternCell measured_sum(Communicator& comm, std::size_t bytes, const PatternBench& how) {
  std::vector<float> values((bytes + sizeof(float) - 1) / sizeof(float)), expected(values);
  PatternCell cell{.name = "all-reduce", .bytes = values.size() * sizeof(float)};
  cell.sent_share = 2 * others_of(comm);
  cell.times = measure(comm, how.seconds, how.least, [&] { comm.native_sum(std::span(values)); });
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = term(comm.rank(), i);
    for (int r = 0; r < comm.size(); ++r) expected[i] += term(r, i);
  }
  comm.native_sum(std::span(values));
  cell.wrong_ranks = count_ranks(comm, values != expected);
  return cell;
}

}  // namespace

int ranks_in_this_process(Communicator& comm) {
  // process ids repeat on other machines, and host names in other containers
  static const std::uint64_t mine = [] {
    std::random_device random;
    return std::uint64_t{random()} << 32 | random();
  }();
  return static_cast<int>(std::ranges::count(gathered(comm, mine), mine));
}

NetworkFacts measure_network(Communicator& comm, double seconds) {
  NetworkFacts facts;
  if (comm.size() == 1) return facts;
  using Out = std::span<const std::byte>;
  using In = std::span<std::byte>;
  const auto n = static_cast<std::size_t>(comm.size());
  facts.latency_s = latency(comm);
  if (n > 2) {
    const std::vector<std::byte> out(8 * n);
    std::vector<std::byte> in(8 * n);
    const double all = measure(comm, seconds / 4, 3, [&] { comm.all_to_all(out, in); }).median_s;
    facts.message_s = std::max(0.0, all - facts.latency_s) / static_cast<double>(n - 2);
  }
  facts.goodput =
      rate_of(comm, seconds, n - 1, [&](Out out, In in, std::size_t) { comm.all_to_all(out, in); });
  facts.cpu_s_per_byte = cpu_per_byte(comm, facts.goodput);
  if (seconds == kBriefly) return facts;
  const int last = comm.size() - 1;
  facts.pair_goodput = rate_of(comm, seconds, 1, [&](Out out, In in, std::size_t each) {
    if (comm.rank() != 0 && comm.rank() != last) return;
    Ticket ticket = comm.rank() == 0 ? comm.start_send(last, kTag, out.first(each))
                                     : comm.start_recv(0, kTag, in.first(each));
    comm.wait(ticket);
  });
  return facts;
}

void bench_patterns(Communicator& comm, const PatternBench& how,
                    const std::function<void(const PatternCell&)>& done) {
  if (comm.size() == 1) return;
  const auto sizes = [&](const char* name, const auto& measured_cell) {
    for (const std::size_t bytes : how.sizes) {
      const auto size = static_cast<double>(bytes);
      done(with_memory_for(concat(name, " of ", grouped(size), " bytes"), size,
                           [&] { return measured_cell(bytes); }));
    }
  };
  for (const Pattern& pattern :
       {ping_pong(comm), shift(comm), all_to_all(comm), all_gather(comm)}) {
    sizes(pattern.name, [&](std::size_t bytes) { return measured(comm, pattern, bytes, how); });
  }
  sizes("all-reduce", [&](std::size_t bytes) { return measured_sum(comm, bytes, how); });
}

}  // namespace pride::inline program
