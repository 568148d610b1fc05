// SyncSchedule: the intervals of steps in which momenta are averaged. Lion Cub's third factor.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "methods/options.h"

namespace pride::methods {

// A function of the step alone, the same on every machine. Interval j begins at step t_j, t_0 = 0,
// and t_{j+1} = t_j + the option sync_every (sync_schedule = even), or, as in 0/1 Adam (Lu et al.
// 2022, arXiv:2202.06009) and Lion Cub's public code,
//   t_{j+1} = floor(t_j + 2^(j/k)),  k = sync_doubling, up to intervals of kLongest steps.
class SyncSchedule {
 public:
  struct Interval {
    std::int64_t begin = 0, length = 1;
  };
  static constexpr std::int64_t kLongest = 1'000'000;

  // Even intervals.  REQUIRES: every >= 1.
  explicit SyncSchedule(std::int64_t every) : length_(every) {}

  // From the method's options. Throws InvalidArgument, naming the method, if one is out of range.
  explicit SyncSchedule(const OptionValues& options);

  // The interval that the step is in. REQUIRES: step >= 0.
  Interval interval_of(std::int64_t step) const;

 private:
  std::vector<std::int64_t> begins_ = {0};  // ascending; intervals of `length_` follow the last
  std::int64_t length_;
};

}  // namespace pride::methods
