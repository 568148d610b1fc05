// Patterns of messages, timed over their sizes and verified.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "bench/timing.h"
#include "pride/communicator.h"

namespace pride::app {

// One pattern with some size of data:
//   ping-pong   rank 0 sends it to the last rank, which sends as much back: half of the time
//   shift       each rank sends it to the next, and receives as much from the one before
//   all-to-all  a part of it to each rank, and as much from each
//   all-gather  a part of it from each rank to all
//   all-reduce  the transport's own sum of so many bytes of float32
struct PatternCell {
  std::string name;
  std::size_t bytes = 0;  // as asked, rounded up to whole parts or numbers
  Times times = {};
  double sent_share = 1;  // of the bytes, by a rank; of an all-reduce what a ring sends
  int wrong_ranks = 0;    // that have not received what they must

  double algorithm_bandwidth() const { return static_cast<double>(bytes) / times.median_s; }
  double bus_bandwidth() const { return sent_share * algorithm_bandwidth(); }
};

struct PatternBench {
  std::vector<std::size_t> sizes = {};  // bytes
  double seconds = 0.25;                // of each cell
  int least = 5;                        // measurements of each cell
};

// Calls `done` after each cell, on all ranks with the same values. Whether results are right is
// looked at when the time is taken: those of the last measured call, and of an all-reduce those of
// one more. Nothing is measured alone. Collective.
void bench_patterns(Communicator& comm, const PatternBench& how,
                    const std::function<void(const PatternCell&)>& done);

}  // namespace pride::app
