// stochastic_signs and draw_planes against plain code, on every instruction set.
// SPDX-License-Identifier: Apache-2.0
// Oracle: tests/reference/stochastic_signs_ref.h.
#include "kernels/stochastic_signs.h"

#include <bit>
#include <limits>

#include "kernels/isa_test.h"
#include "reference/stochastic_signs_ref.h"
#include "support/grid.h"

namespace pride::kernels::stochastic_signs_test {
namespace {

using grid::Guarded;
using reference::SignWords;

constexpr std::uint64_t kSeed = 0xFEDCBA9876543210u;
constexpr int kStep = 77, kRank = 3;
const HashWords kHash{.key = 77, .first_word = 5, .flip = 0x3333CCCC5555AAAA, .shift = 13};

bool bit_of(std::span<const std::uint64_t> words, std::size_t i) {
  return (words[i / 64] >> (i % 64)) & 1;
}

bool bit_of_hash(std::size_t i) { return (kHash.at(i / 64) >> (i % 64)) & 1; }

class StochasticSigns : public OnEveryIsa {};

TEST_P(StochasticSigns, EqualOracle) {
  for_each_size([](std::size_t n, std::size_t offset) {
    for (const std::uint64_t first : {std::uint64_t{0}, (std::uint64_t{1} << 34) - 7}) {
      for (const float scale : {1.1f, 1e-30f, 0x1p-100f, 3e38f}) {
        const auto u = grid::awkward_floats(n, 1);
        Guarded<float> in(u, offset);
        Guarded<std::uint64_t> bits(words_for(n));
        stochastic_signs(in.span(), scale, {kSeed, kStep, kRank, first}, kHash, bits.span());
        for (std::size_t i = 0; i < 64 * words_for(n); ++i) {
          const std::uint32_t word =
              reference::sign_word(kSeed, kStep, SignWords::kRank, kRank, first + i);
          const bool expected =
              i < n && (u[i] == 0 ? bit_of_hash(i) : reference::stochastic_sign(u[i], scale, word));
          ASSERT_EQ(bit_of(bits.span(), i), expected) << "coordinate " << i << ", scale " << scale;
        }
        EXPECT_TRUE(in.intact() && bits.intact());
      }
    }
  });
}

// What is as large as the scale keeps its sign; zeros have no draw, and the smallest values a fair
// one.
TEST_P(StochasticSigns, AreSureOfTheLargestAndFairForTheSmallest) {
  constexpr std::size_t kCoords = 64 * 1000;
  for (const float scale : {1.0f, 0.7f, 0x1p-100f, std::numeric_limits<float>::max()}) {
    const auto share_of_plus = [&](float value) {
      const std::vector<float> u(kCoords, value);
      std::vector<std::uint64_t> bits(words_for(kCoords));
      stochastic_signs(u, scale, {kSeed, kStep, kRank, 0}, kHash, bits);
      std::size_t plus = 0;
      for (const std::uint64_t word : bits) plus += static_cast<std::size_t>(std::popcount(word));
      return static_cast<double>(plus) / kCoords;
    };
    EXPECT_EQ(share_of_plus(scale), 1) << scale;
    EXPECT_EQ(share_of_plus(-scale), 0) << scale;
    // five standard deviations of 64,000 coins: fails by chance once in 10^6, and the seed is fixed
    for (const float least : {0x1p-149f, -0x1p-149f, 0.0f}) {
      EXPECT_NEAR(share_of_plus(least), 0.5, 5 * 0.5 / std::sqrt(kCoords)) << scale;
    }
    EXPECT_EQ(share_of_plus(0.0f), share_of_plus(-0.0f)) << scale;
    EXPECT_EQ(share_of_plus(std::numeric_limits<float>::quiet_NaN()), 0) << scale;
  }
}

TEST_P(StochasticSigns, OfCountsEqualOracle) {
  for (const std::uint32_t present : {0u, 1u, 2u, 3u, 64u, 65535u, 0x7FFFFFFFu}) {
    for (const std::size_t n_words : {0, 1, 2, 9}) {
      const auto n_planes = static_cast<std::size_t>(std::bit_width(present));
      const std::size_t stride = n_words + 2;
      std::vector<std::uint64_t> planes(n_planes * stride);
      std::vector<std::uint32_t> counts(64 * n_words);
      for (std::size_t i = 0; i < counts.size(); ++i) {
        counts[i] = static_cast<std::uint32_t>(mix64(4, i) % (std::uint64_t{present} + 1));
        if (i % 7 == 0) counts[i] = i % 2 == 0 ? 0 : present;
        if (i % 7 == 1) counts[i] = present / 2;
        for (std::size_t p = 0; p < n_planes; ++p) {
          planes[p * stride + i / 64] |= std::uint64_t{counts[i] >> p & 1} << (i % 64);
        }
      }
      Guarded<std::uint64_t> positive(n_words);
      draw_planes({planes, n_planes, stride}, static_cast<int>(present), {kSeed, kStep, 0, 645},
                  kHash, positive.span());
      for (std::size_t i = 0; i < counts.size(); ++i) {
        const std::uint32_t word = reference::sign_word(kSeed, kStep, SignWords::kVote, 0, 645 + i);
        const bool tie = present > 0 && std::uint64_t{2} * counts[i] == present;
        ASSERT_EQ(bit_of(positive.span(), i),
                  tie ? bit_of_hash(i) : reference::drawn_vote(counts[i], present, word))
            << counts[i] << " of " << present << ", coordinate " << i;
        if (counts[i] == 0 || counts[i] == present) {
          ASSERT_EQ(bit_of(positive.span(), i), counts[i] > 0) << i;
        }
      }
      EXPECT_TRUE(positive.intact());
    }
  }
}

PRIDE_ON_EVERY_ISA(StochasticSigns);

}  // namespace
}  // namespace pride::kernels::stochastic_signs_test
