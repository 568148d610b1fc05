// How long a step takes by each method on a network: the model of docs/performance.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "pride/communicator.h"
#include "pride/registry.h"

namespace pride {

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
  double bytes = 0;     // sent per step, in the mean
  int rounds = 2;       // messages, one after the other, that a bucket waits for
  double encode_s = 0;  // arithmetic, all of d, Newton-Schulz included
  double matrix_s = 0;  // Newton-Schulz alone
  double vote_s = 0;    // arithmetic between the rounds
  double apply_s = 0;
  bool whole_gradient = false;  // encode begins after backward
  // Local steps: of each `period` steps `exchanges` send something, all of d together; what they
  // send is adopted `delay` steps later. Encode, vote and apply are then those of an exchange of
  // all of d, and local_s is what a step without one computes.
  std::int64_t period = 1, exchanges = 1, delay = 0;
  double local_s = 0;
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

// Of methods with local steps: the mean over a period. What delays hide is hidden with overlap
// only. REQUIRES: buckets >= 1, bytes_per_s > 0 unless world is 1.
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

// A method, with options of its own.
struct PlanMethod {
  std::string name;
  std::map<std::string, std::string> options = {};
};

// Bytes that the rank with most sends per step, long after the first, for d coordinates on `world`
// ranks. Of ten million coordinates they are counted, of more extrapolated: frames by the bucket,
// the rest by the coordinate.
double bytes_of(const PlanMethod& method, int world, double d, std::size_t bucket_coords);

// The route of buckets of that size, and its rounds; of buckets above ten million coordinates that
// of ten million.
BucketRoute route_of(const PlanMethod& method, int world, std::size_t bucket_coords);

// Both: what a step sends in buckets of that size.
Sent sent_in(const PlanMethod& method, int world, double d, std::size_t bucket_coords);

// What a rank could send while it waits for a round of messages.
std::uint64_t round_bytes(const NetworkModel& network, int world);

// The method with its option round_bytes set to that, if it has one that is not set.
PlanMethod on_network(const PlanMethod& method, const NetworkModel& network, int world);

// Tensors of a transformer of about so many parameters, without embeddings: blocks with the
// matrices of query, key and value (3w, w), projection (w, w) and feed-forward (4w, w) and (w, 4w),
// of width w = 64 times the number of blocks, rounded to a multiple of 64; or one narrower block.
Layout transformer_layout(double params);

// A GPU that holds gradients, parameters and state, by its rates.
struct DeviceModel {
  double bytes_per_s = 0;       // of its memory, read and written, as in a copy; 0: there is none
  double host_bytes_per_s = 0;  // copied to the host's memory, or from there
  double operations_per_s = 0;  // of products of matrices; 0: not known
};

// The method's arithmetic for d coordinates on a device, by the bytes that its kernels read and
// write (docs/performance.md): in the place of encode_s, apply_s, matrix_s and local_s. Votes stay
// on the host. Uncompressed methods are those of a library that adds up on the device, as NCCL:
// what compression has to beat. Of another method without kernels for devices: its times on the
// host, and the copies of gradients and parameters. `operations`: of Newton-Schulz. Throws
// InvalidArgument if there are some, and device.operations_per_s is 0.
MethodModel on_device(const DeviceModel& device, MethodModel model, const PlanMethod& method,
                      int world, double d, double operations);

// What a plan rests on.
struct PlanFacts {
  int world = 1;
  NetworkModel network = {};
  double params = 0;
  Layout tensors{{}};    // of the model, for methods on whole matrices; none: transformer_layout()
  double compute_s = 0;  // forward and backward of a step
  double cores = 2;      // of each rank
  int exchange_threads = 4;
  std::string transport = {};  // of what was measured; empty: the network is on paper
  double matrix_speed = 0;     // operations of Newton-Schulz per second; 0: not measured yet
  DeviceModel device = {};     // on which the methods run; none: on the host
};

struct PlanRow {
  MethodModel method;
  bool dense = false;
  int buckets = 1;    // with the shortest overlapped step
  std::string route;  // of its buckets
  Prediction in_order, overlapped;
  double no_network_s = 0;  // the shorter of both on a network that takes no time
  double best_s() const { return std::min(in_order.step_s, overlapped.step_s); }
};

// Measures the method's arithmetic on this machine, on all ranks of `comm` at once, counts its
// bytes, and predicts its step on facts.world ranks, which may be any number. About a second. Sets
// facts.matrix_speed if the method needs it and it is 0: plans with the same facts differ by no
// measurement of it. Collective. Throws InvalidArgument if there is no such method, option or
// value, or not for so many ranks.
PlanRow plan_step(Communicator& comm, const PlanMethod& method, PlanFacts& facts);

// The row's step with another goodput of the links, in as many buckets: the shorter of both.
double step_at(const PlanFacts& facts, const PlanRow& row, double bytes_per_s);

}  // namespace pride
