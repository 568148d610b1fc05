// Steps of several kinds, timed in turn on all ranks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/timing.h"
#include "pride/communicator.h"
#include "pride/optimizer.h"

namespace pride::app {

inline constexpr const char* kNoExchange = "no exchange";  // each rank a step of Lion, alone

struct StepRow {
  std::string name;  // a method, or what it is compared with
  bool overlap = false;
  std::size_t bucket_coords = 0;  // of a method
  Times times = {};
  // Medians, of the slowest rank each: arithmetic before and after, and what the caller waited for.
  double encode_s = 0, exchange_s = 0, apply_s = 0;
  double samples_per_s = 0;  // of all ranks, at the median; 0 without a model
  double bytes = 0;          // sent per step, of the rank with most, in the last round
  // Of a method: ranks whose parameters after its first step, from the same ones in every row, are
  // not those that rank 0 has after that step without overlap.
  std::optional<int> wrong_ranks = {};
};

struct TimedStep {
  StepRow row;
  std::function<StepReport()> run;
  std::function<void()> prepare = {};  // before each step, not timed
};

// The parameters that all steps change.
struct StepParams {
  std::function<void()> restore;  // to their initial values
  std::function<std::uint64_t()> hash;
};

// Rounds go through the steps in turn, so that what else the machine does hits them alike; all
// ranks begin a step together, and it lasts as long as the slowest's. There are `least` rounds at
// least, and as many as take `seconds`, after one that warms up and is checked. Collective.
std::vector<StepRow> time_steps(Communicator& comm, std::vector<TimedStep> steps,
                                const StepParams& params, double seconds, int least);

}  // namespace pride::app
