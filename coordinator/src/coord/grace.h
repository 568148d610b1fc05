// GraceWindow: how long a round stays open after its quorum, from the arrivals in recent rounds.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "coord/options.h"

namespace pride::coord {

// 1.25 times the 95th percentile of the ballots' delays after the quorum in the last 16 rounds,
// late ones included; before the first round the maximum.
class GraceWindow {
 public:
  static constexpr std::size_t kRounds = 16;
  static constexpr double kFactor = 1.25, kQuantile = 0.95;

  explicit GraceWindow(const QuorumOptions& options) : options_(options) {}

  Seconds window() const;
  void quorum(std::int64_t round, Time at);  // the quorum was reached
  // The delay of a ballot after the quorum of a recent round; not set: unknown.
  std::optional<Seconds> arrived(std::int64_t round, Time at);

 private:
  struct Arrivals {
    std::int64_t round;
    Time quorum;
    std::vector<double> after;
  };
  const QuorumOptions options_;
  std::deque<Arrivals> recent_;
};

}  // namespace pride::coord
