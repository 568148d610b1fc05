// bfloat16 against plain code over the bits, on every instruction set.
// SPDX-License-Identifier: Apache-2.0
// Oracle: the nearer of the two neighbours in double arithmetic, ties to the even one.
#include "pride/bf16.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/isa_test.h"
#include "pride/random_bits.h"
#include "support/grid.h"

namespace pride::bf16_test {
namespace {

using grid::Guarded;

float as_float(std::uint16_t high) { return std::bit_cast<float>(std::uint32_t{high} << 16); }

std::uint16_t nearest(float value) {
  const auto down = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
  const auto up = static_cast<std::uint16_t>(down + 1);
  if (!std::isfinite(value)) return down;
  const double low = std::abs(static_cast<double>(as_float(down)));
  // above the largest number comes 2^128, as far from it as its neighbour below
  const double high =
      std::isinf(as_float(up)) ? 0x1p128 : std::abs(static_cast<double>(as_float(up)));
  const double x = std::abs(static_cast<double>(value));
  if (x - low != high - x) return x - low < high - x ? down : up;
  return down % 2 == 0 ? down : up;
}

class Bf16 : public OnEveryIsa {};

TEST_P(Bf16, RoundsToTheNearestAndTiesToEven) {
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
  // ties that go up, also where vectors end
  do {
    values.push_back(std::bit_cast<float>(0x3F818000u));
  } while (values.size() % 32 != 31);
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

}  // namespace
}  // namespace pride::bf16_test
