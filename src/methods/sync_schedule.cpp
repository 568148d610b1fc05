// SPDX-License-Identifier: Apache-2.0
#include "methods/sync_schedule.h"

#include <algorithm>
#include <cmath>

#include "kernels/log2.h"

namespace pride::methods {

// exp2_of() has the same bits on every machine, and whole powers are exact. Other powers are
// irrational: rounding does not change their floor(), as sync_schedule_test.cpp checks with whole
// numbers.
SyncSchedule::SyncSchedule(const OptionValues& options)
    : SyncSchedule(options.whole("sync_every", 1, kLongest)) {
  const std::int64_t doubling = options.whole("sync_doubling", 1, 1000);
  if (options.word("sync_schedule", {"even", "exponential"}) == 0) return;
  length_ = kLongest;
  for (std::int64_t j = 0;; ++j) {
    const double rest = static_cast<double>(j % doubling) / static_cast<double>(doubling);
    const double power =
        std::ldexp(kernels::exp2_of(rest), static_cast<int>(j / doubling));  // exact
    if (power >= static_cast<double>(kLongest)) return;
    begins_.push_back(begins_.back() + static_cast<std::int64_t>(power));
  }
}

SyncSchedule::Interval SyncSchedule::interval_of(std::int64_t step) const {
  const std::int64_t last = begins_.back();
  if (step >= last) return {last + (step - last) / length_ * length_, length_};
  const auto next = std::ranges::upper_bound(begins_, step);
  return {*(next - 1), *next - *(next - 1)};
}

}  // namespace pride::methods
