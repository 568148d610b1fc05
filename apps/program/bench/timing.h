// Statistics of repeated measurements, steps of several kinds timed alternately on all ranks, and
// rows that do not fit in memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <functional>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "pride/communicator.h"
#include "pride/error.h"
#include "pride/optimizer.h"
#include "program/table.h"

namespace pride::inline program {

struct Times {
  int n = 0;
  double min_s = 0, median_s = 0, p99_s = 0;  // p99: the largest below 100 measurements
};

// REQUIRES: at least one time.
Times times_of(std::vector<double> seconds);

// The values of all ranks, on all ranks. Collective.
template <typename T>
std::vector<T> gathered(Communicator& comm, const T& mine) {
  std::vector<T> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}
// The largest value of all ranks. Collective.
double largest_of(Communicator& comm, double mine);
// The number of ranks with `is_true`. Collective.
int count_ranks(Communicator& comm, bool is_true);

// Processor time of the process or of the thread.
double cpu_seconds(clockid_t clock);

// Calls `work` until `seconds` are over, at least `least` times, equally often on all ranks. Each
// measurement is the slowest rank's and lasts at least 20 ms: shorter calls are repeated without a
// pause. Seconds are per call. Collective.
Times measure(Communicator& comm, double seconds, int least, const std::function<void()>& work);

// Returns the result of `work`. If memory is short, throws an Error that names the row (with its
// size) and the minimum bytes per rank.
template <typename Work>
auto with_memory_for(const std::string& row, double bytes, Work&& work) {
  try {
    return std::forward<Work>(work)();
  } catch (const std::bad_alloc&) {
    throw Error(concat(row, ": out of memory: each rank needs ", grouped(bytes),
                       " bytes or more; ask for smaller --sizes"));
  }
}

inline constexpr const char* kNoExchange = "no exchange";  // each rank runs Lion alone

struct StepRow {
  std::string name;  // a method, or a reference
  bool overlap = false;
  std::size_t bucket_coords = 0;  // 0: not a method, and parameters are not compared
  Times times = {};
  // Medians, each of the slowest rank; exchange_s is the caller's wait.
  double encode_s = 0, exchange_s = 0, apply_s = 0;
  double samples_per_s = 0;  // of all ranks, at the median; 0 without a model
  double bytes = 0;          // sent in the last repetition by the rank that sends most
  // For a method: ranks whose parameters after its first step differ from rank 0's after that step
  // without overlap. All rows start from the same parameters.
  std::optional<int> wrong_ranks = {};
};

struct TimedStep {
  StepRow row;
  std::function<StepReport()> run;
  std::function<void()> prepare = {};  // called before each step, not timed
};

// The parameters that all steps change.
struct StepParams {
  std::function<void()> restore;  // sets the initial values
  std::function<std::uint64_t()> hash;
};

// Each repetition runs all kinds of steps in turn, so that other work on the machine affects them
// alike. All ranks begin a step together, and its time is the slowest rank's. The first warms up
// and is checked. Then at least `least` more, for at least `seconds`, are timed. Collective.
std::vector<StepRow> time_steps(Communicator& comm, std::vector<TimedStep> steps,
                                const StepParams& params, double seconds, int least);

}  // namespace pride::inline program
