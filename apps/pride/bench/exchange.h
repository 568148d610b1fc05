// Times of the methods' exchanges with encoded gradients, and of optimizer steps with the gradients
// ready; and checks of the results.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "pride/communicator.h"
#include "pride/nodes.h"
#include "program/bench/network.h"
#include "program/bench/timing.h"

namespace pride::app {

// Settings of `bench exchange` and `bench optimizer`, unless a comment names one.
struct MethodBench {
  std::vector<std::string> methods = {};  // "lion", or with options "lion:dense=bf16"
  // for exchange: "key=value" for each method that has the key and does not set it itself
  std::vector<std::string> method_options = {};
  std::vector<std::size_t> sizes = {};  // coordinates
  std::size_t bucket_coords = std::size_t{1} << 20;
  int tensors = 1;           // for optimizer: number of separate tensors; 1: one flat buffer
  Nodes nodes = {};          // for exchange; if known: the hierarchical route, if the method has it
  int exchange_threads = 4;  // 0: exchange on the caller's thread; no row with overlap
  double seconds = 1;        // minimum per cell; for optimizer, of all rows together
  int least = 5;             // minimum measurements per cell; for optimizer, repetitions
  // For optimizer: the GPU that has parameters and state and runs the methods; null: the host.
  std::shared_ptr<Device> device = nullptr;
};

struct ExchangeCell {
  std::string name;  // the method, or the reference
  std::size_t coords = 0;
  Times times = {};
  // Bytes of the rank that sends most. Bytes of the transport's own sum cannot be counted. Then
  // `counted` is false, and this is an estimate: the method's cost, or for the sum alone a ring's.
  double bytes = 0;
  // The method's: "sharded", "one-shot", "hierarchical", "native"; "mixed" if buckets differ.
  std::string route = {};
  // Bytes that leave the node that sends most, by its ranks' costs; none if nodes are unknown or
  // the method does not use them.
  std::optional<double> bytes_off_node = {};
  bool counted = true;
  double limit_s = 0;   // time of `bytes` at the best measured goodput; 0 with one rank
  int wrong_ranks = 0;  // ranks with a wrong result
  std::string checked_against = {};  // "threads" (the same exchange on threads), "rank 0", "the
                                     // exact sum", "its source" (of memcpy)

  double algorithm_bandwidth() const;  // fp32 bytes of gradient per second
  double bus_bandwidth() const;        // bytes sent per second
};

// Throws InvalidArgument on an unknown method, option or value, and if no method has an option of
// `method_options`. Not collective, and fast.
void check_options(const MethodBench& how, int world);

// Measures for each size the methods, the transport's all-reduce of fp32 and bf16, and memcpy of as
// many floats, which no exchange can beat. Calls `done` after each cell, on all ranks with the same
// values. Collective. Throws InvalidArgument on an unknown method, option or value.
void bench_exchange(Communicator& comm, const MethodBench& how, const NetworkFacts& network,
                    const std::function<void(const ExchangeCell&)>& done);

inline constexpr const char* kGpuCopy = "copy, 20 B each";  // each coordinate

// Rows on the host: kNoExchange; the methods; the transport's own all-reduce with the dense Lion
// kernel; on threads also the same in shared memory, where each thread averages its part of all
// gradients in place. On a device: kGpuCopy, which moves as many bytes as a step of Lion reads and
// writes; kNoExchange; the methods. Collective. Throws InvalidArgument on an unknown method, or one
// that cannot run on the device.
std::vector<StepRow> bench_optimizer(Communicator& comm, const MethodBench& how,
                                     std::size_t coords);

}  // namespace pride::app
