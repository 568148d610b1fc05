// Predicted step times of each method on a network: the model of docs/performance.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "pride/communicator.h"
#include "pride/registry.h"
#include "pride/replica.h"

namespace pride {

// A network between ranks that all send to all others.
struct NetworkModel {
  double latency_s = 0;    // one-way time of one message
  double message_s = 0;    // time of each further message that a rank sends or receives
  double bytes_per_s = 0;  // rate of a rank that sends and receives equally; > 0
  double cpu_s = 0;        // processor time of a rank for each byte that it sends
};

// The cost of a method's step on a rank, without the model's own work.
struct MethodModel {
  std::string name;
  double bytes = 0;     // sent per step, on average
  int phases = 2;       // sequential messages that a bucket waits for
  double encode_s = 0;  // arithmetic for all d coordinates, with Newton-Schulz
  double matrix_s = 0;  // Newton-Schulz alone
  double vote_s = 0;    // arithmetic between the phases
  double apply_s = 0;
  bool whole_gradient = false;  // encode begins after backward
  // Local steps: `exchanges` of `period` steps send; together they send all d coordinates. Results
  // are adopted `delay` steps later. Encode, vote and apply are for an exchange of all d; local_s
  // is the computation of a step without exchange.
  std::int64_t period = 1, exchanges = 1, delay = 0;
  double local_s = 0;
};

struct StepModel {
  int world = 1;
  double compute_s = 0;            // forward and backward, without exchange
  double forward_share = 1.0 / 3;  // share of compute_s before the first gradient
  int buckets = 1;
  int exchange_threads = 4;  // buckets in flight
  double cores = 2;          // cores per rank; below 2, arithmetic does not overlap
};

struct Prediction {
  double step_s = 0;
  double network_s = 0;     // latencies and bytes, without overlap
  double arithmetic_s = 0;  // encode, vote, apply
  double hidden_s = 0;      // of network_s and arithmetic_s, hidden by forward and backward
  std::string bottleneck;   // "compute", "bandwidth", "latency" or "arithmetic"
};

// For methods with local steps: the mean over a period. Delays hide time only with overlap.
// REQUIRES: buckets >= 1, bytes_per_s > 0 unless world is 1.
Prediction predict(const NetworkModel& network, const MethodModel& method, const StepModel& step,
                   bool overlap);

// Values that depend on the size of the buckets.
struct Sent {
  double bytes = 0;       // per step: small buckets have more frames
  int phases = 2;         // small buckets may have another route
  double vote_times = 1;  // factor on the arithmetic between phases
};
MethodModel with(MethodModel method, const Sent& sent);

// The power of two in the range that, as the number of buckets, gives the shortest overlapped step.
// REQUIRES: the range contains a power of two.
struct BucketRange {
  int fewest = 1, most = 1;
};
int best_buckets(const NetworkModel& network, const MethodModel& method, StepModel step,
                 const BucketRange& range, const std::function<Sent(int buckets)>& sent);

// A method and its options.
struct PlanMethod {
  std::string name;
  std::map<std::string, std::string> options = {};
  // As OptimizerOptions::groups; empty: all tensors have the method. Only plan_step(),
  // sections_of() and on_network() read them.
  std::vector<ParamGroup> groups = {};
};

// A section of a model: its method, with all options, and its tensors.
struct PlanSection {
  PlanMethod method;
  Layout tensors;
};

// The sections of an optimizer for these tensors, without those that have no values. REQUIRES:
// groups. Throws InvalidArgument as an optimizer does.
std::vector<PlanSection> sections_of(const PlanMethod& method, const Layout& tensors, int world);

// Bytes per step of the rank that sends most, long after the first step, for d coordinates on
// `world` ranks. Up to ten million coordinates they are counted; above that extrapolated, frames by
// bucket and the rest by coordinate.
double bytes_of(const PlanMethod& method, int world, double d, std::size_t bucket_coords);

// The route of buckets of this size, and its phases. Above ten million coordinates the result is
// that for ten million.
BucketRoute route_of(const PlanMethod& method, int world, std::size_t bucket_coords);

// Both: bytes and route of a step in buckets of this size.
Sent sent_in(const PlanMethod& method, int world, double d, std::size_t bucket_coords);

// The bandwidth-delay product: the bytes that a rank could send while it waits for a phase.
std::uint64_t bandwidth_delay_bytes(const NetworkModel& network, int world);

// The method with bandwidth_delay_bytes() as its option of that name, if it has that option and it
// is not set. The same for the methods of its groups.
PlanMethod on_network(const PlanMethod& method, const NetworkModel& network, int world);

// Tensors of a transformer of about `params` parameters, without embeddings: blocks with the
// matrices of query, key and value (3w, w), projection (w, w) and feed-forward (4w, w) and (w, 4w),
// of width w = 64 times the number of blocks, rounded to a multiple of 64; or one narrower block.
Layout transformer_layout(double params);

// The rates of a GPU that holds gradients, parameters and state.
struct DeviceModel {
  double bytes_per_s = 0;       // of a copy in its memory, read and written; 0: no GPU
  double host_bytes_per_s = 0;  // of copies to the host's memory, or from it
  double operations_per_s = 0;  // of products of matrices; 0: not known
};

// True if the method exchanges floats in every step, bfloat16 too.
bool is_uncompressed(const PlanMethod& method, int world);

// The method's arithmetic for d coordinates on a device, from the bytes that its kernels read and
// write (docs/performance.md). It replaces encode_s, apply_s, matrix_s and local_s. Votes stay on
// the host. Uncompressed methods are modelled as a library that adds up on the device, such as
// NCCL: compression has to be faster than that. Other methods without kernels for devices keep
// their times on the host, plus copies of gradients and parameters. `operations`: the result of
// matrix_operations(). Throws InvalidArgument if it is above 0 and device.operations_per_s is 0.
MethodModel on_device(const DeviceModel& device, MethodModel model, const PlanMethod& method,
                      int world, double d, double operations);

// The inputs of a plan.
struct PlanFacts {
  int world = 1;
  NetworkModel network = {};
  double params = 0;
  // For methods on whole matrices; empty: transformer_layout(params). A method with groups needs
  // the model's tensors, params in all.
  Layout tensors{{}};
  double compute_s = 0;  // forward and backward of a step
  double cores = 2;      // of each rank
  int exchange_threads = 4;
  std::string transport = {};  // on which `network` was measured; empty: it was given
  double matrix_speed = 0;     // Newton-Schulz operations per second; 0: not measured yet
  DeviceModel device = {};     // the GPU on which methods run; bytes_per_s 0: the host
};

struct PlanRow {
  MethodModel method;
  bool dense = false;
  int buckets = 1;    // with the shortest overlapped step
  std::string route;  // route of its buckets
  Prediction in_order, overlapped;
  double no_network_s = 0;  // as best_s(), on a network that takes no time
  double best_s() const { return std::min(in_order.step_s, overlapped.step_s); }
};

// Measures the method's arithmetic on this machine, on all ranks of `comm` at once, and counts its
// bytes; both are sums over its sections. Then predicts its step on facts.world ranks, which may be
// any number. Takes about a second. Sets facts.matrix_speed if the method needs it and it is 0, so
// that plans with the same facts share one measurement. Collective. Throws InvalidArgument if the
// method, option or value does not exist, or not for this number of ranks.
PlanRow plan_step(Communicator& comm, const PlanMethod& method, PlanFacts& facts);

// PlanRow::best_s() on another network, with the row's number of buckets.
double step_on(const NetworkModel& network, const PlanFacts& facts, const PlanRow& row);

}  // namespace pride
