// The kernels of TernGrad against plain code, on every instruction set.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/ternary.h"

#include <bit>

#include "kernels/isa_test.h"
#include "reference/kernels_ref.h"
#include "reference/terngrad_ref.h"
#include "support/grid.h"

namespace pride::kernels::ternary_test {
namespace {

using grid::Guarded;
using reference::Floats;

class Ternary : public OnEveryIsa {};

TEST_P(Ternary, CodesEqualOracle) {
  for (const std::size_t n : grid::kSizes) {
    for (const std::uint64_t first : {std::uint64_t{0}, (std::uint64_t{1} << 34) - 7}) {
      SCOPED_TRACE(::testing::Message() << "n " << n << " from " << first);
      const Floats g = grid::awkward_floats(n, 1);
      const float limit = 0.8f, scale = 1.1f;
      const PhiloxKey key{.seed = 0xFEDCBA9876543210u, .step = 77, .rank = 3, .first_coord = first};
      Guarded<float> gg(g, 1);
      Guarded<std::uint64_t> plus(words_for(n)), not_minus(words_for(n));
      ternarise(gg.span(), limit, scale, key, plus.span(), not_minus.span());
      for (std::size_t i = 0; i < 64 * words_for(n); ++i) {
        int expected = -1;  // of the padding: no bit in either plane
        if (i < n) {
          const float u = reference::ternary_uniform(key.seed, 77, 3, first + i);
          const bool kept = u * scale < std::min(std::fabs(g[i]), limit);
          expected = kept ? (g[i] > 0) - (g[i] < 0) : 0;
        }
        const int a = static_cast<int>((plus.span()[i / 64] >> (i % 64)) & 1);
        const int b = static_cast<int>((not_minus.span()[i / 64] >> (i % 64)) & 1);
        ASSERT_EQ(a + b, expected + 1) << "coordinate " << i;
        ASSERT_LE(a, b);
      }
      EXPECT_TRUE(gg.intact() && plus.intact() && not_minus.intact());
    }
  }
}

TEST_P(Ternary, SumsBecomeFloats) {
  for (const std::size_t n : grid::kSizes) {
    const std::size_t stride = words_for(n) + 2;
    std::vector<std::uint64_t> planes(4 * stride);
    for (std::size_t w = 0; w < planes.size(); ++w) planes[w] = mix64(9, w);
    Guarded<float> out(n, 1);
    sums_to_floats(planes, 4, stride, 3, 5, 0.3f, out.span());
    for (std::size_t i = 0; i < n; ++i) {
      int total = -3;
      for (std::size_t p = 0; p < 4; ++p) {
        total += static_cast<int>((planes[p * stride + i / 64] >> (i % 64)) & 1) << p;
      }
      const float mean = static_cast<float>(total) / 5.0f;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(out.values()[i]),
                std::bit_cast<std::uint32_t>(0.3f * mean));
    }
    EXPECT_TRUE(out.intact());
  }
}

TEST_P(Ternary, ReductionsEqualOracle) {
  for (const std::size_t n : grid::kSizes) {
    const Floats x = grid::awkward_floats(n, 2);
    const double expected = reference::sixteen_sums(x, [](double v) { return v; });
    EXPECT_EQ(std::bit_cast<std::uint64_t>(sum(x)), std::bit_cast<std::uint64_t>(expected)) << n;
    float most = 0;
    for (const float v : x) most = std::max(most, std::fabs(v));
    EXPECT_EQ(max_abs(x), most) << n;
  }
}

PRIDE_ON_EVERY_ISA(Ternary);

}  // namespace
}  // namespace pride::kernels::ternary_test
