// GraceWindow: how long after its quorum a round stays open, by when ballots came in recent rounds.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "coord/options.h"

namespace pride::coord {

// 1.25 times the 95th percentile of how long after the quorum ballots came in the last 16 rounds,
// those that were late included; before the first round, the most.
class GraceWindow {
 public:
  static constexpr std::size_t kRounds = 16;
  static constexpr double kFactor = 1.25, kQuantile = 0.95;

  explicit GraceWindow(const QuorumOptions& options) : options_(options) {}

  Seconds window() const;
  void quorum(std::int64_t round, Time at);  // it was reached
  // A ballot came after the quorum of a recent round: how long after. Not set: that is unknown.
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
