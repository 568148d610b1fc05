// Intervals of momentum synchronisation.
// SPDX-License-Identifier: Apache-2.0
// Oracle: d = floor(2^(j/k)) as the whole number with d^k <= 2^j < (d+1)^k, in long integers.
#include "methods/sync_schedule.h"

#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "pride/error.h"
#include "pride/layout.h"

namespace pride::methods::sync_schedule_test {
namespace {

SyncSchedule schedule(const std::string& kind, int every, int doubling) {
  return SyncSchedule(OptionMap{{"sync_schedule", kind},
                                {"sync_every", std::to_string(every)},
                                {"sync_doubling", std::to_string(doubling)}});
}

// Bits of base^power, least first in words of 32.
using Long = std::vector<std::uint32_t>;
Long power_of(std::uint32_t base, int power) {
  Long out{1};
  for (int i = 0; i < power; ++i) {
    std::uint64_t carry = 0;
    for (std::uint32_t& word : out) {
      carry += std::uint64_t{word} * base;
      word = static_cast<std::uint32_t>(carry);
      carry >>= 32;
    }
    if (carry > 0) out.push_back(static_cast<std::uint32_t>(carry));
  }
  return out;
}

bool at_most_two_to(const Long& x, int j) {
  const int bits = static_cast<int>(32 * x.size()) - std::countl_zero(x.back());
  if (bits != j + 1) return bits <= j;
  for (std::size_t i = 0; i + 1 < x.size(); ++i) {
    if (x[i] != 0) return false;
  }
  return std::has_single_bit(x.back());
}

TEST(SyncSchedule, EvenIntervalsFollowOneAnother) {
  const SyncSchedule even = schedule("even", 6, 16);
  for (std::int64_t step = 0; step < 40; ++step) {
    EXPECT_EQ(even.interval_of(step).begin, step / 6 * 6);
    EXPECT_EQ(even.interval_of(step).length, 6);
  }
}

TEST(SyncSchedule, ExponentialIntervalsAreThoseOfZeroOneAdamExactly) {
  for (const int k : {1, 2, 3, 5, 16, 40}) {
    const SyncSchedule exponential = schedule("exponential", 8, k);
    std::int64_t begin = 0;
    std::uint32_t d = 1;
    for (int j = 0;; ++j) {
      while (at_most_two_to(power_of(d + 1, k), j)) ++d;
      if (d >= SyncSchedule::kLongest) break;
      for (const std::int64_t step : {begin, begin + d / 2, begin + d - 1}) {
        const auto interval = exponential.interval_of(step);
        ASSERT_EQ(interval.begin, begin) << "k " << k << " j " << j << " step " << step;
        ASSERT_EQ(interval.length, d) << "k " << k << " j " << j;
      }
      begin += d;
    }
    // even from here on
    for (const std::int64_t i : {0, 1, 7}) {
      const auto interval = exponential.interval_of(begin + i * SyncSchedule::kLongest + 3);
      EXPECT_EQ(interval.begin, begin + i * SyncSchedule::kLongest);
      EXPECT_EQ(interval.length, SyncSchedule::kLongest);
    }
  }
}

// The first due steps of the public code, int(t + 2^(j/16)) from 0.
TEST(SyncSchedule, BeginsWithEveryStep) {
  const SyncSchedule exponential = schedule("exponential", 8, 16);
  for (std::int64_t step = 0; step < 16; ++step) {
    EXPECT_EQ(exponential.interval_of(step).begin, step);
  }
  EXPECT_EQ(exponential.interval_of(17).begin, 16);
  EXPECT_EQ(exponential.interval_of(35).begin, 34);
  EXPECT_EQ(exponential.interval_of(38).begin, 36);
  EXPECT_EQ(exponential.interval_of(39).begin, 39);
}

TEST(SyncSchedule, RefusesWhatIsOutOfRange) {
  EXPECT_THROW(schedule("even", 0, 16), InvalidArgument);
  EXPECT_THROW(schedule("even", 8, 0), InvalidArgument);
  EXPECT_THROW(schedule("linear", 8, 16), InvalidArgument);
}

}  // namespace
}  // namespace pride::methods::sync_schedule_test
