// Float16 against exact arithmetic.
// SPDX-License-Identifier: Apache-2.0
#include "pride/float16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace pride::float16_test {
namespace {

// Oracle: exact arithmetic in double, then the nearest of the two neighbours.
TEST(Float16, RoundsToNearestEven) {
  std::vector<float> all(1 << 16);
  std::vector<Float16> bits(all.size()), back(all.size());
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<Float16>(i);
  to_float(bits, all);
  to_float16(all, back);
  for (std::size_t i = 0; i < bits.size(); ++i) {
    if (std::isnan(all[i])) {
      ASSERT_GT(static_cast<unsigned>(back[i]) & 0x7FFFu, 0x7C00u) << i;
    } else {
      ASSERT_EQ(back[i], bits[i]) << i;
    }
  }
  EXPECT_EQ(all[1], 0x1p-24f);
  EXPECT_EQ(all[0x3C00], 1.0f);
  EXPECT_EQ(all[0x7BFF], 65504.0f);
  EXPECT_EQ(all[0xFC00], -std::numeric_limits<float>::infinity());
  // halfway between neighbours, and just beside
  for (std::size_t i = 0; i + 1 < 0x7C00; ++i) {
    const float low = all[i], high = all[i + 1], half = low + (high - low) / 2;
    const float in[] = {half, std::nextafter(half, low), std::nextafter(half, high)};
    Float16 out[3];
    to_float16(in, out);
    ASSERT_EQ(static_cast<std::size_t>(out[0]), i % 2 == 0 ? i : i + 1) << half;
    ASSERT_EQ(static_cast<std::size_t>(out[1]), i) << half;
    ASSERT_EQ(static_cast<std::size_t>(out[2]), i + 1) << half;
  }
  const float edges[] = {65519.996f, 65520.0f, 1e30f, -1e-30f};
  Float16 out[4];
  to_float16(edges, out);
  EXPECT_EQ(static_cast<unsigned>(out[0]), 0x7BFFu);
  EXPECT_EQ(static_cast<unsigned>(out[1]), 0x7C00u);
  EXPECT_EQ(static_cast<unsigned>(out[2]), 0x7C00u);
  EXPECT_EQ(static_cast<unsigned>(out[3]), 0x8000u);
}

}  // namespace
}  // namespace pride::float16_test
