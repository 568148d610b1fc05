// Measures the network between the ranks; times and verifies patterns of messages.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "bench/timing.h"
#include "pride/communicator.h"

namespace pride::app {

struct NetworkFacts {
  // Half of a round trip of 8 bytes between rank 0 and another, the slowest other; s. 0 if alone.
  double latency_s = 0;
  // Time of each further message if all ranks send 8 bytes to each other: the rest of that
  // exchange's time, divided by N - 2. 0 on two ranks.
  double message_s = 0;
  // Bytes that a rank sends per second while all ranks send to all others and receive as much:
  // the pattern of every exchange, in messages of the best size. Of the slowest rank; 0 if alone.
  double goodput = 0;
  // Processor time of this rank for each of those bytes, the kernel's included.
  double cpu_s_per_byte = 0;
  // The same rate with one message at a time from rank 0 to the last rank, as in ping-pong: with
  // ranks placed host by host, these two are on different hosts.
  double pair_goodput = 0;
};

// Ranks of `comm` that are threads of this rank's process, itself among them. Collective.
int ranks_in_this_process(Communicator& comm);

// Takes a few times `seconds`. kBriefly takes about a second at most, omits pair_goodput, and uses
// messages of up to 10 ms. Collective; the result is the same on all ranks.
inline constexpr double kBriefly = 0;
NetworkFacts measure_network(Communicator& comm, double seconds);

// One pattern with some size of data:
//   ping-pong   rank 0 sends it to the last rank, which sends as much back: half of the time
//   shift       each rank sends it to the next, and receives as much from the one before
//   all-to-all  a part of it to each rank, and as much from each
//   all-gather  a part of it from each rank to all
//   all-reduce  the transport's own sum of so many bytes of float32
struct PatternCell {
  std::string name;
  std::size_t bytes = 0;  // as requested, rounded up to whole parts or numbers
  Times times = {};
  double sent_share = 1;  // of the bytes, by a rank; of an all-reduce what a ring sends
  int wrong_ranks = 0;    // ranks that received wrong bytes

  double algorithm_bandwidth() const { return static_cast<double>(bytes) / times.median_s; }
  double bus_bandwidth() const { return sent_share * algorithm_bandwidth(); }
};

struct PatternBench {
  std::vector<std::size_t> sizes = {};  // bytes
  double seconds = 0.25;                // of each cell
  int least = 5;                        // measurements of each cell
};

// Calls `done` after each cell, on all ranks with the same values. Results are checked after the
// timing: those of the last measured call, and for an all-reduce of one more call. Nothing is
// measured with one rank. Collective.
void bench_patterns(Communicator& comm, const PatternBench& how,
                    const std::function<void(const PatternCell&)>& done);

}  // namespace pride::app
