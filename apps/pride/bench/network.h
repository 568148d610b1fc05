// What the network between the ranks can do, measured.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/timing.h"
#include "pride/communicator.h"

namespace pride::app {

struct NetworkFacts {
  // Half of a round trip of 8 bytes between rank 0 and another, the slowest other; s. 0 if alone.
  double latency_s = 0;
  // Of each further message where all ranks send one of 8 bytes to each other: what is left of
  // that exchange's time, divided by N - 2. 0 on two ranks.
  double message_s = 0;
  // Bytes that a rank sends per second while all ranks send to all others and receive as much:
  // the pattern of every exchange, in messages of the best size. Of the slowest rank; 0 if alone.
  double goodput = 0;
  // Processor time of this rank for each of those bytes, the kernel's included.
  double cpu_s_per_byte = 0;
  // The same rate with one message from rank 0 to the last rank at a time, as ping-pong has it:
  // where ranks are placed host by host, those two do not share one.
  double pair_goodput = 0;
};

// Ranks of `comm` that are threads of this rank's process, itself among them. Collective.
int ranks_in_this_process(Communicator& comm);

// Takes a few times `seconds`; with kBriefly about a second at most, without pair_goodput, and with
// messages up to those that take 10 ms. Collective; the result is the same on all ranks.
inline constexpr double kBriefly = 0;
NetworkFacts measure_network(Communicator& comm, double seconds);

}  // namespace pride::app
