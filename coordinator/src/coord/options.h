// CoordinatorOptions: closing of rounds, voters, and what is kept.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "pride/serving.h"

namespace pride::coord {

using Time = std::chrono::steady_clock::time_point;
using Seconds = std::chrono::duration<double>;
using MakeServing = std::function<std::unique_ptr<Serving>(const RunDescription&)>;

enum class Weighting {
  kEqual,    // one vote per worker
  kGiven,    // as requested at registration, at most most_weight
  kLearned,  // from how often its signs agree with the others': coord/weights.h
};

struct QuorumOptions {
  int min_workers = 1;            // a round never closes with fewer voters
  std::optional<int> count = {};  // voters of a quorum, also a minimum; not set: share
  double share = 0.5;             // of the workers waited for, rounded up

  int least_voters() const { return std::max(min_workers, count.value_or(1)); }
  // Time after the quorum; not set: from recent arrivals, within these limits.
  std::optional<Seconds> grace = {};
  Seconds least_grace{0.05}, most_grace{30};
  bool odd = false;  // leave out the last of an even number of equal voters
};

// An operator's orders during a run, which override the options and the workers' settings.
struct Orders {
  std::optional<int> min_workers = {}, quorum = {};
  std::optional<std::int64_t> steps = {};       // the run's length, at least the settings'
  std::optional<std::int64_t> last_round = {};  // the run's last round
  std::set<std::string> ejected = {};           // names of refused workers

  bool operator==(const Orders&) const = default;
};

struct CoordinatorOptions {
  std::filesystem::path folder = {};  // of the journal
  QuorumOptions quorum = {};
  Weighting weighting = Weighting::kEqual;
  std::optional<int> most_weight = {};  // of a worker; not set: 65535, or 2 for kLearned
  Seconds dead_after{15};               // without a call
  std::uint32_t heartbeat_ms = 3000;
  std::uint32_t most_wait_ms = 60'000;  // of WaitRound
  int max_workers = 1024;               // registrations in all
  int registrations_per_minute = 600;   // new names
  int attempts_per_minute = 120;        // registrations, per certificate or address
  std::int64_t parameters_every = 100;  // rounds between kept parameters; 0: only the first
  // The coordinator applies records itself (coord/shadow.h) and requests no worker's parameters.
  bool shadow = false;
  bool retain_all = true;  // false: only records since the older of the newest two parameters
  std::size_t segment_bytes = std::size_t{256} << 20;

  int most_weight_of_a_worker() const;
};

}  // namespace pride::coord
