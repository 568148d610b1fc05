// Which of a worker's last ballots were not counted: the rule for a warning, on both sides.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <string>

#include "pride/error.h"

namespace pride::coord {

// From three lost ones of the last eight on the worker trains, in part, for nothing.
class LostBallots {
 public:
  // True once a warning is due, and again only after eight ballots in a row were counted.
  bool add(bool lost) {
    outcomes_ = (outcomes_ << 1 | unsigned{lost}) & ((1U << kWindow) - 1);
    n_ = std::min(n_ + 1, kWindow);
    const bool due = is_many() && !warned_;
    warned_ = (warned_ || due) && outcomes_ != 0;
    return due;
  }
  bool is_many() const { return std::popcount(outcomes_) >= kMost; }
  std::string share() const { return concat(std::popcount(outcomes_), " of the last ", n_); }

 private:
  static constexpr int kWindow = 8, kMost = 3;
  unsigned outcomes_ = 0;  // a bit per ballot, the last one lowest; set: it was lost
  int n_ = 0;
  bool warned_ = false;
};

}  // namespace pride::coord
