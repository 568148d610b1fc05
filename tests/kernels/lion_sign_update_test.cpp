// lion_sign_update against the scalar oracle, bit for bit. The oracle rounds every operation, so a
// build that contracts b*m + c*g into an FMA fails here.
// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/isa_test.h"
#include "kernels/kernels.h"
#include "reference/kernels_ref.h"
#include "support/grid.h"

namespace pride::kernels::lion_sign_update_test {
namespace {

using grid::Guarded;
using reference::Floats;
using reference::Words;

const Blend kBlend{.beta1 = 0.9f,
                   .one_minus_beta1 = static_cast<float>(1 - 0.9),
                   .beta2 = 0.99f,
                   .one_minus_beta2 = static_cast<float>(1 - 0.99)};
const HashWords kZeros{.key = 0x1234567, .first_word = 77, .flip = 0x3333CCCC5555AAAA, .shift = 13};

class LionSignUpdate : public OnEveryIsa {
 protected:
  // Runs the kernel between guards and compares all its results with the oracle.
  static void expect_like_oracle(const Floats& g, const Floats& m, std::size_t offset = 0) {
    const auto want = reference::lion_sign_update(g, kBlend, kZeros, m);
    Guarded<float> gg(g, offset), gm(m, offset ? offset + 1 : 0);
    Guarded<std::uint64_t> bits(words_for(g.size()));
    const std::size_t bad = lion_sign_update(gg.span(), kBlend, kZeros, gm.span(), bits.span());
    EXPECT_EQ(bad, want.first_bad);
    EXPECT_TRUE(grid::same_words(bits.values(), want.bits));
    EXPECT_TRUE(grid::same_floats(gm.values(), want.m));
    EXPECT_TRUE(grid::same_floats(gg.values(), g)) << "the gradient was written";
    EXPECT_TRUE(gg.intact() && gm.intact() && bits.intact());
  }
};

TEST_P(LionSignUpdate, EqualsOracleOnEverySizeAndOffset) {
  for (const std::size_t n : grid::kSizes) {
    for (const std::size_t offset : grid::kOffsets) {
      SCOPED_TRACE(::testing::Message() << "n " << n << " offset " << offset);
      expect_like_oracle(grid::awkward_floats(n, 1), grid::awkward_floats(n, 2), offset);
    }
  }
}

TEST_P(LionSignUpdate, LeavesNonFiniteLanesAndReportsTheFirst) {
  for (const std::size_t n : grid::kSizes) {
    SCOPED_TRACE(::testing::Message() << "n " << n);
    expect_like_oracle(grid::wild_floats(n, 3), grid::awkward_floats(n, 4));
    expect_like_oracle(grid::awkward_floats(n, 5), grid::wild_floats(n, 6));
  }
}

TEST_P(LionSignUpdate, ReportsOneBadLaneAnywhere) {
  constexpr float kBad[] = {std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()};
  const std::size_t n = 4200;
  for (std::size_t at = 0; at < n; at += at < 130 ? 1 : 61) {
    Floats g(n, 1.0f), m(n, -1.0f);
    g[at] = kBad[at % 3];
    Words bits(words_for(n));
    ASSERT_EQ(lion_sign_update(g, kBlend, kZeros, m, bits), at);
    ASSERT_EQ(m[at], -1.0f);
    ASSERT_FALSE(reference::bit_at(bits, at));
  }
}

TEST_P(LionSignUpdate, BlendThatCancelsTakesTheHashBit) {
  // with beta1 = 1/2, m = -g cancels exactly; -0 and +0 are zeros too
  const Blend half{
      .beta1 = 0.5f, .one_minus_beta1 = 0.5f, .beta2 = 0.75f, .one_minus_beta2 = 0.25f};
  const std::size_t n = 1000;
  Floats g = grid::awkward_floats(n, 7), m(n);
  for (std::size_t i = 0; i < n; ++i) m[i] = -g[i];
  for (std::size_t i = 0; i < n; i += 3) g[i] = m[i] = i % 2 ? 0.0f : -0.0f;
  Words bits(words_for(n));
  EXPECT_EQ(lion_sign_update(g, half, kZeros, m, bits), kAllFinite);
  for (std::size_t i = 0; i < n; ++i) {
    ASSERT_EQ(reference::bit_at(bits, i), reference::hash_bit(kZeros, i)) << "index " << i;
  }
}

TEST_P(LionSignUpdate, BitsOfZerosAreUnbiased) {
  // 2^20 zeros: the count of +1 is within 5 standard deviations (512 each) of one half, and so is
  // that of each of the 64 bits of a word (64 standard deviations of its own 2^14 words)
  const std::size_t n = std::size_t{1} << 20;
  Floats g(n), m(n);
  Words bits(words_for(n));
  lion_sign_update(g, kBlend, HashWords{.key = 99}, m, bits);
  std::size_t total = 0;
  std::array<int, 64> by_place{};
  for (const std::uint64_t word : bits) {
    total += static_cast<std::size_t>(std::popcount(word));
    for (int i = 0; i < 64; ++i) by_place[i] += static_cast<int>((word >> i) & 1);
  }
  EXPECT_NEAR(static_cast<double>(total), n / 2.0, 5 * 512.0);
  for (const int ones : by_place) EXPECT_NEAR(ones, 8192, 5 * 64);
}

TEST_P(LionSignUpdate, RoundsTheProductBeforeTheSum) {
  // inputs for which fma(beta1, m, c*g) and the two roundings have different signs or bits
  Floats g, m;
  PhiloxStream random(11, 0, 0);
  std::size_t differ = 0;
  while (g.size() < 4096) {
    const float a = 2 * random.next_unit() - 1;
    const float b = -(kBlend.beta1 * a) / kBlend.one_minus_beta1;
    const float two_roundings = kBlend.beta1 * a + kBlend.one_minus_beta1 * b;
    const float fused = std::fma(kBlend.beta1, a, kBlend.one_minus_beta1 * b);
    differ += (two_roundings > 0) != (fused > 0);
    m.push_back(a);
    g.push_back(b);
  }
  ASSERT_GT(differ, 500u) << "the inputs must be able to show a contraction";
  expect_like_oracle(g, m);
}

TEST_P(LionSignUpdate, ZeroBlendWithBadMomentumHasNoBit) {
  // betas outside of any convex rule, so that u cancels and the new m overflows
  const Blend steep{.beta1 = 0.5f, .one_minus_beta1 = 0.5f, .beta2 = 2, .one_minus_beta2 = -2};
  const std::size_t n = 64 * 4;
  const Floats g(n, -3e38f);
  Floats m(n, 3e38f);
  Words bits(words_for(n), 1);
  EXPECT_EQ(lion_sign_update(g, steep, kZeros, m, bits), 0u);
  EXPECT_TRUE(grid::same_words(bits, Words(words_for(n))));
  EXPECT_TRUE(grid::same_floats(m, Floats(n, 3e38f)));
}

PRIDE_ON_EVERY_ISA(LionSignUpdate);

}  // namespace
}  // namespace pride::kernels::lion_sign_update_test
