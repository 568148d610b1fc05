// The sum of logarithms against plain code, on every instruction set.
// SPDX-License-Identifier: Apache-2.0
// Oracle: std::log2 and std::exp2 of the C library.
#include "kernels/log2.h"

#include <bit>
#include <cmath>

#include "kernels/isa_test.h"
#include "pride/random_bits.h"
#include "support/grid.h"

namespace pride::kernels::log2_test {
namespace {

using grid::Guarded;

// of max(1, |log|), and of the power: the header's bound, and a unit of the C library's result
constexpr double kTolerance = 0x1p-51 + 0x1p-52;
// of the mean of logarithms up to 128: the oracle's sum of n rounded numbers
constexpr double kMeanTolerance = 128 * 1e-13;

std::vector<float> magnitudes(std::size_t n) {
  std::vector<float> x = grid::awkward_floats(n, 1);
  for (std::size_t i = 0; i < n; i += 5) x[i] *= 1e-9f;
  return x;
}

class Log2 : public OnEveryIsa {};

TEST_P(Log2, SumEqualsOracle) {
  for_each_size([](std::size_t n, std::size_t offset) {
    const std::vector<float> x = magnitudes(n);
    double expected = 0;
    for (const float v : x) expected += std::log2(std::fabs(double{v}) + 1e-12);
    Guarded<float> gx(x, offset);
    EXPECT_NEAR(sum_log2(gx.span()), expected, kMeanTolerance * static_cast<double>(n));
    EXPECT_TRUE(gx.intact());
  });
}

// 64 factors of a block of 1024 go into a partial product before it is normalised.
TEST_P(Log2, ManyFactorsDoNotOverflow) {
  for (const float v : {3.4e38f, 1.99999988f, 1.0f, 0.0f, -1e-45f}) {
    const std::vector<float> x(100'000, v);
    const double each = std::log2(std::fabs(double{v}) + 1e-12);
    EXPECT_NEAR(sum_log2(x) / 100'000, each, kMeanTolerance) << v;
  }
}

TEST_P(Log2, SumHasTheBitsOfPlainCode) {
  for (const std::size_t n : {1, 100, 1024, 1025, 4096, 70'000}) {
    const std::vector<float> x = magnitudes(n);
    const double here = sum_log2(x);
    force_isa("SCALAR");
    EXPECT_EQ(std::bit_cast<std::uint64_t>(here), std::bit_cast<std::uint64_t>(sum_log2(x))) << n;
    force_isa(GetParam());
  }
}

PRIDE_ON_EVERY_ISA(Log2);

TEST(Log2, OfOneNumberEqualsTheCLibrary) {
  PhiloxStream random(3, 0, 0);
  for (int i = 0; i < 100'000; ++i) {
    const double y = 1900 * (double{random.next_unit()} - 0.5), power = exp2_of(y);
    EXPECT_NEAR(power, std::exp2(y), kTolerance * std::exp2(y)) << y;
    EXPECT_NEAR(log2_of(power), std::log2(power), kTolerance * std::max(1.0, std::fabs(y)))
        << power;
    const double near_one = 1 + (double{random.next_unit()} - 0.5);
    EXPECT_NEAR(log2_of(near_one), std::log2(near_one), kTolerance) << near_one;
  }
}

TEST(Log2, IsExactForPowersOfTwo) {
  for (int q = -1000; q <= 1000; ++q) {
    EXPECT_EQ(exp2_of(q), std::ldexp(1.0, q));
    EXPECT_EQ(log2_of(std::ldexp(1.0, q)), q);
  }
}

}  // namespace
}  // namespace pride::kernels::log2_test
