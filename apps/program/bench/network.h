// Measures the network between the ranks; times and verifies patterns of messages.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "pride/communicator.h"
#include "program/bench/timing.h"

namespace pride::inline program {

struct NetworkFacts {
  // Seconds of half a round trip of 8 bytes between rank 0 and the slowest other; 0 with one rank.
  double latency_s = 0;
  // Seconds of each further message: the time in which all ranks send 8 bytes to each other, less
  // latency_s, divided by N - 2. 0 with two ranks.
  double message_s = 0;
  // Bytes that the slowest rank sends per second while all ranks send to all others: the pattern of
  // every exchange, with messages of the best size. 0 with one rank.
  double goodput = 0;
  // Processor time of this rank per byte of goodput, including the operating system's.
  double cpu_s_per_byte = 0;
  // Bytes per second of single messages from rank 0 to the last rank. If ranks are placed host by
  // host, these two are on different hosts.
  double pair_goodput = 0;
};

// The number of ranks of `comm`, including this one, in this rank's process. Collective.
int ranks_in_this_process(Communicator& comm);

// Takes a few times `seconds`. kBriefly takes about a second at most, omits pair_goodput, and uses
// messages of up to 10 ms. Collective; the result is the same on all ranks.
inline constexpr double kBriefly = 0;
NetworkFacts measure_network(Communicator& comm, double seconds);

// One pattern with some size of data:
//   ping-pong   rank 0 sends the data to the last rank, which sends them back: half of the time
//   shift       each rank sends the data to the next rank
//   all-to-all  each rank sends a part of the data to each rank
//   all-gather  each rank sends its part of the data to all
//   all-reduce  the transport's own sum of the data, as float32
struct PatternCell {
  std::string name;
  std::size_t bytes = 0;  // as requested, rounded up to whole parts or numbers
  Times times = {};
  double sent_share = 1;  // share of the bytes that a rank sends; for an all-reduce, in a ring
  int wrong_ranks = 0;    // ranks that received wrong bytes

  double algorithm_bandwidth() const { return static_cast<double>(bytes) / times.median_s; }
  double bus_bandwidth() const { return sent_share * algorithm_bandwidth(); }
};

struct PatternBench {
  std::vector<std::size_t> sizes = {};  // bytes
  double seconds = 0.25;                // minimum per cell
  int least = 5;                        // minimum measurements per cell
};

// Calls `done` after each cell, on all ranks with the same values. After the timing it checks the
// bytes of the last measured call, or for an all-reduce of one more call. Measures nothing with one
// rank. Collective.
void bench_patterns(Communicator& comm, const PatternBench& how,
                    const std::function<void(const PatternCell&)>& done);

}  // namespace pride::inline program
