// Times of the methods' exchanges with encoded gradients, and of optimizer steps with the gradients
// ready; and checks of the results.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/network.h"
#include "bench/timing.h"
#include "pride/communicator.h"
#include "pride/nodes.h"

namespace pride::app {

// For exchange and optimizer, unless noted.
struct MethodBench {
  std::vector<std::string> methods = {};  // "lion", or with options "lion:dense=bf16"
  // for exchange: "key=value", for every other method with the key
  std::vector<std::string> method_options = {};
  std::vector<std::size_t> sizes = {};  // coordinates
  std::size_t bucket_coords = std::size_t{1} << 20;
  int tensors = 1;   // for optimizer: number of separate tensors; 1: one flat buffer
  Nodes nodes = {};  // for exchange; if known: the hierarchical route, for methods that have it
  int exchange_threads = 4;  // 0: exchange on the caller's thread; no row with overlap
  double seconds = 1;        // minimum per cell; for steps, of all rows together
  int least = 5;             // minimum measurements per cell; rounds of steps
  // For optimizer: the memory of parameters and state, where the methods run; null: the host.
  std::shared_ptr<Device> device = nullptr;
};

struct ExchangeCell {
  std::string name;  // the method, or the rival
  std::size_t coords = 0;
  Times times = {};
  // Counted bytes of the rank that sends most. If they contain the transport's own sum, which
  // cannot be counted, they are an estimate: the method's cost, and for the sum alone that of a
  // ring.
  double bytes = 0;
  // The method's: "sharded", "one-shot", "hierarchical", "native"; "mixed" if buckets differ.
  std::string route = {};
  // Bytes that leave the node which sends most, by its ranks' stated costs; nothing if nodes are
  // unknown or the method does not use them.
  std::optional<double> bytes_off_node = {};
  bool counted = true;
  double limit_s = 0;  // those bytes at the best goodput measured; 0 if alone
  // Ranks with a wrong result.
  int wrong_ranks = 0;
  std::string checked_against = {};  // "threads" (the same exchange there), "rank 0", "the exact
                                     // sum", "its source" (of memcpy)

  double algorithm_bandwidth() const;  // fp32 bytes of gradient per second
  double bus_bandwidth() const;        // bytes sent per second
};

// Throws InvalidArgument on an unknown method, option or value, and on one of `method_options` that
// no method has. Local and fast.
void check_options(const MethodBench& how, int world);

// For each size the methods, the transport's all-reduce of fp32 and of bf16, and memcpy of as many
// floats, which no exchange can beat. Calls `done` after each cell, on all ranks with the same
// values. Collective. Throws InvalidArgument on a method, or an option's value, that there is not.
void bench_exchange(Communicator& comm, const MethodBench& how, const NetworkFacts& network,
                    const std::function<void(const ExchangeCell&)>& done);

inline constexpr const char* kGpuCopy = "copy, 20 B each";  // of a coordinate

// For parameters of one tensor: kNoExchange, the methods, the transport's own all-reduce with the
// dense Lion kernel and, on threads, the same in shared memory: each thread averages its part of
// all gradients where they lie. On a device: kGpuCopy, which moves as many bytes as a step of Lion
// reads and writes, kNoExchange, and the methods. Collective. Throws InvalidArgument on a method
// that there is not, or not on a device.
std::vector<StepRow> bench_optimizer(Communicator& comm, const MethodBench& how,
                                     std::size_t coords);

}  // namespace pride::app
