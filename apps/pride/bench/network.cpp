// Ping-pong, and everybody to everybody.
// SPDX-License-Identifier: Apache-2.0
#include "bench/network.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <vector>

namespace pride::app {
namespace {

constexpr int kTag = 0;
constexpr int kRoundTrips = 20;
constexpr std::size_t kLargest = std::size_t{64} << 20;   // bytes to all peers together
constexpr std::size_t kAllRanks = std::size_t{1} << 30;   // and of all ranks
constexpr std::size_t kSmallest = std::size_t{16} << 10;  // to each
constexpr double kLongEnough = 0.1;                       // s, of one call
constexpr double kBrieflyEnough = 0.01;

double pairs_latency(Communicator& comm, int other) {
  std::array<std::byte, 8> out{}, in{};
  const bool first = comm.rank() == 0;
  std::vector<double> all;
  comm.barrier();
  if (!first && comm.rank() != other) return 0;
  const int peer = first ? other : 0;
  for (int i = 0; i < kRoundTrips; ++i) {
    const auto start = std::chrono::steady_clock::now();
    Ticket receive = comm.start_recv(peer, kTag, in);
    if (!first) comm.wait(receive);
    Ticket send = comm.start_send(peer, kTag, out);
    comm.wait(receive);
    comm.wait(send);
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

// The best over message sizes, doubled until one call takes long enough: very large messages from
// all to all can be slower than those of a bucket, where queues on the way overflow.
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

double process_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Of messages that take kBrieflyEnough or so; the ranks of a process share its time.
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
  const double start = process_seconds();
  constexpr int kCalls = 5;
  for (int i = 0; i < kCalls; ++i) comm.all_to_all(out, in);
  comm.barrier();
  const double seconds = (process_seconds() - start) / ranks_here;
  return largest_of(comm, seconds / (kCalls * static_cast<double>(each * (n - 1))));
}

}  // namespace

int ranks_in_this_process(Communicator& comm) {
  // process ids repeat from machine to machine, and names of machines from container to container
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

}  // namespace pride::app
