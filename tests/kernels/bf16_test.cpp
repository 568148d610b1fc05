// bfloat16, and the two halves of a float32 value, on every instruction set.
// SPDX-License-Identifier: Apache-2.0
// Oracle: the nearer of the two neighbours in double arithmetic. Ties go to the even one, or for
// upper halves away from zero.
#include "pride/bf16.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/floats.h"
#include "kernels/isa_test.h"
#include "pride/random_bits.h"
#include "support/grid.h"

namespace pride::bf16_test {
namespace {

using grid::Guarded;

float as_float(unsigned high) { return std::bit_cast<float>(std::uint32_t{high} << 16); }

// Above the largest number comes 2^128, as far from it as its neighbour below.
double magnitude(unsigned high) {
  return (high & 0x7FFFu) == 0x7F80u ? 0x1p128 : std::abs(static_cast<double>(as_float(high)));
}

std::uint16_t nearest(float value) {
  const auto down = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
  const auto up = static_cast<std::uint16_t>(down + 1);
  if (!std::isfinite(value)) return down;
  const double low = magnitude(down), high = magnitude(up);
  const double x = std::abs(static_cast<double>(value));
  if (x - low != high - x) return x - low < high - x ? down : up;
  return down % 2 == 0 ? down : up;
}

// Numbers of all kinds, with ties among them; `last` where vectors end.
std::vector<float> numbers(std::uint32_t last) {
  std::vector<float> values;
  for (std::uint64_t i = 0; i < 100'003; ++i) {
    auto bits = static_cast<std::uint32_t>(mix64(1, i));
    if (i % 3 == 0) bits = (bits & 0xFFFF0000u) | 0x8000u;  // ties
    const auto value = std::bit_cast<float>(bits);
    if (!std::isnan(value)) values.push_back(value);
  }
  for (const float v : {0.0f, -0.0f, 1e-45f, 3.4028235e38f, -3.4028235e38f, 3.39e38f,
                        std::numeric_limits<float>::infinity()}) {
    values.push_back(v);
  }
  do {
    values.push_back(std::bit_cast<float>(last));
  } while (values.size() % 32 != 31);
  return values;
}

class Bf16 : public OnEveryIsa {};

TEST_P(Bf16, RoundsToTheNearestAndTiesToEven) {
  std::vector<float> values = numbers(0x3F818000u);  // ties that go up
  Guarded<float> in(values, 1);
  Guarded<std::uint16_t> out(values.size());
  to_bf16(in.span(), {reinterpret_cast<BFloat16*>(out.span().data()), values.size()});
  const auto got = out.values();
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(got[i], nearest(values[i])) << values[i] << " at " << i;
  }
  EXPECT_TRUE(in.intact() && out.intact());
}

TEST_P(Bf16, KeepsNaN) {
  std::vector<float> values(37, std::bit_cast<float>(0x7F800001u));  // its upper half alone is Inf
  std::vector<BFloat16> out(values.size());
  to_bf16(values, out);
  std::vector<float> back(values.size());
  to_float(out, back);
  for (const float v : back) EXPECT_TRUE(std::isnan(v));
}

TEST_P(Bf16, EveryNumberComesBack) {
  std::vector<BFloat16> all(65536), again(65536);
  std::vector<float> wide(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<BFloat16>(i);
  to_float(all, wide);
  to_bf16(wide, again);
  for (std::size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]), i << 16);
    if (!std::isnan(wide[i])) {
      ASSERT_EQ(again[i], all[i]) << i;
    }
  }
}

PRIDE_ON_EVERY_ISA(Bf16);

// Ties away from zero.
unsigned nearest_or_beyond(float value) {
  const std::uint32_t down = std::bit_cast<std::uint32_t>(value) >> 16;
  if (std::isinf(value)) return down;
  const double x = std::abs(static_cast<double>(value));
  return x - magnitude(down) < magnitude(down + 1) - x ? down : down + 1;
}

class Halves : public OnEveryIsa {};

TEST_P(Halves, AreTheNearestBFloat16AndAllThatIsBeyondIt) {
  const std::vector<float> values = numbers(0x3F808000u);  // ties
  const std::size_t n = values.size();
  Guarded<float> in(values, 1), back(std::vector<float>(n), 3);
  Guarded<std::uint16_t> upper(n), lower(n);
  split(in.span(), upper.span().data(), lower.span().data());
  join(upper.span().data(), lower.span().data(), back.span());
  const auto high = upper.values();
  const auto again = back.values();
  for (std::size_t i = 0; i < n; ++i) {
    ASSERT_EQ(high[i], nearest_or_beyond(values[i])) << values[i] << " at " << i;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(again[i]), std::bit_cast<std::uint32_t>(values[i])) << i;
  }
  EXPECT_TRUE(in.intact() && back.intact() && upper.intact() && lower.intact());
}

TEST_P(Halves, OfAnEditedValueAreOneThatRoundsToIt) {
  std::vector<std::uint16_t> lower;
  for (const unsigned x : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu, 0x1234u, 0xABCDu}) {
    lower.push_back(static_cast<std::uint16_t>(x));
  }
  const std::size_t n = lower.size();
  std::vector<float> x(n);
  std::vector<std::uint16_t> again(n), rest(n);
  for (unsigned high = 0; high < 65536; ++high) {
    const std::vector<std::uint16_t> upper(n, static_cast<std::uint16_t>(high));
    join(upper.data(), lower.data(), x);
    split(x, again.data(), rest.data());
    for (std::size_t i = 0; i < n; ++i) {
      if ((high & 0x7FFFu) > 0x7F80u) {
        ASSERT_TRUE(std::isnan(x[i])) << high;
      } else {
        ASSERT_EQ(again[i], high) << lower[i] << " gives " << x[i];
      }
    }
  }
}

TEST_P(Halves, KeepNaN) {
  for (const std::uint32_t bits : {0x7FFFFFFFu, 0xFFFFFFFFu, 0x7F800001u, 0xFF800001u}) {
    std::vector<float> x(37, std::bit_cast<float>(bits)), back(37);
    std::vector<std::uint16_t> upper(37), lower(37);
    split(x, upper.data(), lower.data());
    join(upper.data(), lower.data(), back);
    for (const float y : back) {
      ASSERT_TRUE(std::isnan(y)) << bits;
      ASSERT_EQ(std::signbit(y), (bits >> 31) != 0) << bits;
    }
  }
}

PRIDE_ON_EVERY_ISA(Halves);

}  // namespace
}  // namespace pride::bf16_test
