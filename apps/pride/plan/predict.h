// How long a step takes: the model of docs/performance.md, as functions of measured numbers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

namespace pride::app {

// A network between ranks that all send to all others.
struct NetworkModel {
  double latency_s = 0;    // of one message, one way
  double message_s = 0;    // of each further message that a rank sends or receives
  double bytes_per_s = 0;  // that a rank sends while it receives as much; > 0
  double cpu_s = 0;        // processor time of a rank for each byte that it sends
};

// What a method's step asks of a rank, beside the model's own work.
struct MethodModel {
  std::string name;
  double bytes = 0;     // sent per step
  int rounds = 2;       // messages, one after the other, that a bucket waits for
  double encode_s = 0;  // arithmetic, all of d
  double vote_s = 0;    // arithmetic between the rounds
  double apply_s = 0;
  bool whole_gradient = false;  // encode begins after backward
};

struct StepModel {
  int world = 1;
  double compute_s = 0;            // forward and backward, without exchange
  double forward_share = 1.0 / 3;  // of compute, before the first gradient
  int buckets = 1;
  int exchange_threads = 4;  // buckets on their way at a time
  double cores = 2;          // that a rank has to itself: below 2, arithmetic takes turns
};

struct Prediction {
  double step_s = 0;
  double network_s = 0;     // the network's part, if nothing hid it: latencies and bytes
  double arithmetic_s = 0;  // encode, vote, apply
  double hidden_s = 0;      // of network and arithmetic, beside forward and backward
  std::string bottleneck;   // "compute", "bandwidth", "latency" or "arithmetic"
};

// REQUIRES: buckets >= 1, bytes_per_s > 0 unless world is 1.
Prediction predict(const NetworkModel& network, const MethodModel& method, const StepModel& step,
                   bool overlap);

// What depends on the size of the buckets.
struct Sent {
  double bytes = 0;       // in a step: small buckets have more frames
  int rounds = 2;         // and may take another route
  double vote_times = 1;  // in which the arithmetic between rounds is so many times as long
};
MethodModel with(MethodModel method, const Sent& sent);

// The number of buckets, of the powers of two in the range, with the shortest overlapped step.
// REQUIRES: there is one in it.
struct BucketRange {
  int fewest = 1, most = 1;
};
int best_buckets(const NetworkModel& network, const MethodModel& method, StepModel step,
                 const BucketRange& range, const std::function<Sent(int buckets)>& sent);

}  // namespace pride::app
