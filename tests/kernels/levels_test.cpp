// The kernels of p-bit quantisation against the scalar oracle, bit for bit, on every instruction
// set.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/levels.h"

#include <bit>

#include "kernels/isa_test.h"
#include "reference/levels_ref.h"
#include "support/grid.h"

namespace pride::kernels::levels_test {
namespace {

using grid::Guarded;
using reference::Floats;
using reference::Levels;
using reference::Words;

const Blend kBlend{0.9f, 0.1f, 0.99f, 0.01f};
const HashWords kHash{.key = 77, .first_word = 5, .flip = 0x3333CCCC5555AAAA, .shift = 13};

Levels some_levels(std::size_t n, int bits, std::uint64_t seed) {
  PhiloxStream random(seed, 3, n);
  const int s = largest_level(bits);
  Levels q(n);
  for (auto& level : q) {
    level = static_cast<std::int8_t>(
        static_cast<int>(random.next_below(static_cast<std::uint32_t>(2 * s + 1))) - s);
  }
  return q;
}

class LevelKernels : public OnEveryIsa {};

TEST_P(LevelKernels, BlendEqualsOracleAndLeavesBadLanesAlone) {
  for_each_size([](std::size_t n, std::size_t offset) {
    const Floats g = grid::wild_floats(n, 1), m = grid::wild_floats(n, 2);
    Guarded<float> gg(g, offset), gm(m), gu(n, 1);
    const std::size_t bad = lion_blend(gg.span(), kBlend, gm.span(), gu.span());
    std::size_t first_bad = kAllFinite;
    Floats want_m = m, want_u(n);
    for (std::size_t i = 0; i < n; ++i) {
      const float kept = kBlend.beta1 * m[i], fresh = kBlend.one_minus_beta1 * g[i];
      const float kept2 = kBlend.beta2 * m[i], fresh2 = kBlend.one_minus_beta2 * g[i];
      const float u = kept + fresh, next = kept2 + fresh2;
      const bool finite = std::isfinite(u) && std::isfinite(next);
      want_u[i] = finite ? u : 0.0f;
      if (finite) want_m[i] = next;
      if (!finite && first_bad == kAllFinite) first_bad = i;
    }
    EXPECT_EQ(bad, first_bad);
    EXPECT_TRUE(grid::same_floats(gm.values(), want_m));
    EXPECT_TRUE(grid::same_floats(gu.values(), want_u));
    EXPECT_TRUE(gg.intact() && gm.intact() && gu.intact());
  });
}

TEST_P(LevelKernels, QuantisingEqualsOracle) {
  for_each_size([](std::size_t n, std::size_t offset) {
    const Floats u = grid::awkward_floats(n, 3);
    Floats r(n);
    for (std::size_t i = 0; i < n; ++i) r[i] = reference::uniform(1, 2, 3, i);
    for (const int largest : {1, 3, 7, 31, 127}) {
      for (const float inv : {0.0f, 0.5f, 3.0f, 1e30f}) {
        Guarded<float> gu(u, offset), gr(r);
        Guarded<std::int8_t> nearest(n, offset), random(n);
        quantise(gu.span(), inv, largest, nearest.span());
        quantise(gu.span(), inv, largest, gr.span(), random.span());
        for (std::size_t i = 0; i < n; ++i) {
          ASSERT_EQ(nearest.values()[i], reference::level(u[i], inv, largest))
              << u[i] << " " << inv;
          ASSERT_EQ(random.values()[i], reference::level(u[i], inv, largest, r[i])) << u[i];
        }
        EXPECT_TRUE(gu.intact() && gr.intact() && nearest.intact() && random.intact());
        if (n > 200) return;  // the sizes below cover the rest
      }
    }
  });
}

TEST_P(LevelKernels, QuantisingAtOnceEqualsBlendThenLevels) {
  for_each_size([](std::size_t n, std::size_t offset) {
    const Floats g = grid::wild_floats(n, 11), m = grid::wild_floats(n, 12);
    for (const float inv : {0.0f, 7.0f, 1e20f}) {
      Guarded<float> gg(g, offset), gm(m), want_m(m), u(n);
      Guarded<std::int8_t> q(n, offset), want_q(n);
      const std::size_t bad = lion_quantise(gg.span(), kBlend, inv, 31, gm.span(), q.span());
      EXPECT_EQ(bad, lion_blend(gg.span(), kBlend, want_m.span(), u.span()));
      quantise(u.span(), inv, 31, want_q.span());
      EXPECT_EQ(q.values(), want_q.values());
      EXPECT_TRUE(grid::same_floats(gm.values(), want_m.values()));
      EXPECT_TRUE(gg.intact() && gm.intact() && q.intact());
    }
  });
}

TEST_P(LevelKernels, TiesRoundToEven) {
  const Floats u{0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 6.5f, 7.5f, -7.5f};
  Levels q(u.size());
  quantise(u, 1.0f, 7, q);
  EXPECT_EQ(q, (Levels{0, 2, 2, 0, -2, -2, 6, 7, -7}));
}

TEST_P(LevelKernels, UniformsArePhiloxWords) {
  for (const std::size_t n : {std::size_t{1}, std::size_t{64}, std::size_t{200}}) {
    Guarded<float> r(n);
    uniforms({.seed = 0x123456789abcdefu, .step = 9, .rank = 3, .first_coord = 645}, r.span());
    for (std::size_t i = 0; i < n; ++i) {
      ASSERT_EQ(r.values()[i], reference::uniform(0x123456789abcdefu, 9, 3, 645 + i)) << i;
    }
    EXPECT_TRUE(r.intact());
  }
}

TEST_P(LevelKernels, ErrorsFloatsAndSumsEqualOracle) {
  for_each_size([](std::size_t n, std::size_t offset) {
    const Floats u = grid::awkward_floats(n, 4), e = grid::awkward_floats(n, 5);
    const Levels q = some_levels(n, 8, 6);
    Guarded<float> gu(u, offset), ge(e), error(n, 1), x(n);
    Guarded<std::int8_t> gq(q, offset);
    keep_level_error(gu.span(), gq.span(), 0.3f, error.span());
    levels_to_floats(gq.span(), 0.3f, x.span());
    add(ge.span(), gu.span());
    Floats want_error(n), want_x(n), want_sum(n);
    for (std::size_t i = 0; i < n; ++i) {
      want_x[i] = static_cast<float>(q[i]) * 0.3f;
      want_error[i] = u[i] - want_x[i];
      want_sum[i] = u[i] + e[i];
    }
    EXPECT_TRUE(grid::same_floats(error.values(), want_error));
    EXPECT_TRUE(grid::same_floats(x.values(), want_x));
    EXPECT_TRUE(grid::same_floats(gu.values(), want_sum));
    EXPECT_TRUE(gu.intact() && ge.intact() && gq.intact() && error.intact() && x.intact());
  });
}

TEST_P(LevelKernels, PackingEqualsOracleAndBack) {
  for (int bits = kMinLevelBits; bits <= kMaxLevelBits; ++bits) {
    for (const std::size_t n : grid::kSizes) {
      SCOPED_TRACE(::testing::Message() << "bits " << bits << " n " << n);
      const Levels q = some_levels(n, bits, 7);
      const LevelShape shape{words_for(n), bits};
      Guarded<std::int8_t> gq(q, 3);
      Guarded<std::uint64_t> lines(shape.size());
      pack_levels(gq.span(), shape, 0, lines.span());
      EXPECT_TRUE(grid::same_words(lines.values(), reference::packed(q, bits)));
      Guarded<std::int8_t> back(n, 1);
      unpack_levels(lines.span(), shape, 0, back.span());
      EXPECT_EQ(back.values(), q);
      EXPECT_TRUE(gq.intact() && lines.intact() && back.intact());
    }
  }
}

// A piece begins and ends anywhere in a shard.
TEST_P(LevelKernels, PacksPartsOfAShard) {
  const std::size_t n = 64 * 21;
  for (int bits = kMinLevelBits; bits <= kMaxLevelBits; ++bits) {
    const Levels q = some_levels(n, bits, 8);
    const LevelShape shape{21, bits};
    Words lines(shape.size());
    for (const auto& [first, end] : {std::pair{0, 3}, {3, 9}, {9, 18}, {18, 21}}) {
      const auto begin = static_cast<std::size_t>(first),
                 count = static_cast<std::size_t>(end - first);
      pack_levels(std::span(q).subspan(64 * begin, 64 * count), shape, begin, lines);
      Levels back(64 * count);
      unpack_levels(lines, shape, begin, back);
      EXPECT_TRUE(std::equal(back.begin(), back.end(), q.begin() + 64 * first));
    }
    EXPECT_TRUE(grid::same_words(lines, reference::packed(q, bits))) << bits;
  }
}

// Rows of levels, packed.
struct Ranks {
  Ranks(std::size_t n_ranks, std::size_t n, int bits, std::uint64_t seed)
      : shape{words_for(n), bits} {
    for (std::size_t r = 0; r < n_ranks; ++r) {
      levels.push_back(some_levels(n, bits, seed + r));
      lines.push_back(reference::packed(levels.back(), bits));
    }
    for (const Words& words : lines) rows.push_back(words.data());
  }
  int sum(std::size_t i) const {
    int total = 0;
    for (const Levels& q : levels) total += q[i];
    return total;
  }
  LevelShape shape;
  std::vector<Levels> levels;
  std::vector<Words> lines;
  std::vector<const std::uint64_t*> rows;
};

void expect_votes(const Ranks& ranks, std::size_t first, std::size_t end) {
  const std::size_t n = ranks.levels[0].size();
  Guarded<std::uint64_t> positive(end - first), ternary(end - first), nonzero(end - first);
  const LevelRows rows{ranks.rows, ranks.shape, first};
  ASSERT_TRUE(vote_levels(rows, kHash, positive.span()));
  ASSERT_TRUE(vote_levels_ternary(rows, ternary.span(), nonzero.span()));
  for (std::size_t i = 64 * first; i < std::min(n, 64 * end); ++i) {
    const int sum = ranks.sum(i);
    const std::size_t at = i - 64 * first;
    const bool tie = reference::hash_bit(kHash, at);
    ASSERT_EQ(reference::bit_at(positive.values(), at), sum > 0 || (sum == 0 && tie)) << i;
    ASSERT_EQ(reference::bit_at(ternary.values(), at), sum > 0) << i;
    ASSERT_EQ(reference::bit_at(nonzero.values(), at), sum != 0) << i;
  }
  EXPECT_TRUE(positive.intact() && ternary.intact() && nonzero.intact());
}

TEST_P(LevelKernels, VoteIsTheSignOfTheExactSum) {
  for (int bits = kMinLevelBits; bits <= kMaxLevelBits; ++bits) {
    for (const std::size_t n_ranks : {1, 2, 3, 4, 8, 9, 33, 64, 65}) {
      for (const std::size_t n :
           {std::size_t{1}, std::size_t{100}, std::size_t{512}, std::size_t{1400}}) {
        SCOPED_TRACE(::testing::Message() << "bits " << bits << " ranks " << n_ranks << " n " << n);
        const Ranks ranks(n_ranks, n, bits, 100);
        expect_votes(ranks, 0, words_for(n));
        if (n == 1400) expect_votes(ranks, 5, 19);  // a part, across runs
      }
    }
  }
}

// The largest sums that 1,024 ranks can have, and what decides a vote by one.
TEST_P(LevelKernels, SumsDoNotOverflowAt1024Ranks) {
  for (int bits = kMinLevelBits; bits <= kMaxLevelBits; ++bits) {
    const auto s = static_cast<std::int8_t>(largest_level(bits));
    const std::size_t n = 512;
    const LevelShape shape{words_for(n), bits};
    // coordinate 0: all +s; 1: all -s; 2: halves cancel; 3: halves cancel but for one
    Levels up(n), down(n);
    up[0] = down[0] = s;
    up[1] = down[1] = static_cast<std::int8_t>(-s);
    up[2] = up[3] = s;
    down[2] = down[3] = static_cast<std::int8_t>(-s);
    Levels odd = down;
    odd[3] = static_cast<std::int8_t>(1 - s);
    const Words a = reference::packed(up, bits), b = reference::packed(down, bits),
                c = reference::packed(odd, bits);
    std::vector<const std::uint64_t*> rows(512, a.data());
    rows.insert(rows.end(), 511, b.data());
    rows.push_back(c.data());
    Words positive(shape.n_words), nonzero(shape.n_words);
    ASSERT_TRUE(vote_levels_ternary({rows, shape, 0}, positive, nonzero));
    EXPECT_EQ(positive[0], 0b1001u) << bits;
    EXPECT_EQ(nonzero[0], 0b1011u) << bits;
  }
}

TEST_P(LevelKernels, VoteFindsACodeThatNoLevelHas) {
  for (int bits = kMinLevelBits; bits <= kMaxLevelBits; ++bits) {
    Ranks ranks(3, 700, bits, 9);
    Words positive(ranks.shape.n_words), nonzero(ranks.shape.n_words);
    for (const std::size_t word : {0, 7, 10}) {
      auto& lines = ranks.lines[1];
      const Words before = lines;
      for (int b = 0; b < bits; ++b) {
        lines[ranks.shape.at(word) + static_cast<std::size_t>(b) * ranks.shape.width(word)] |= 1u
                                                                                               << 5;
      }
      EXPECT_FALSE(vote_levels({ranks.rows, ranks.shape, 0}, kHash, positive)) << bits;
      EXPECT_FALSE(vote_levels_ternary({ranks.rows, ranks.shape, 0}, positive, nonzero)) << bits;
      lines = before;
      EXPECT_TRUE(vote_levels({ranks.rows, ranks.shape, 0}, kHash, positive)) << bits;
    }
  }
}

TEST_P(LevelKernels, SumsMadeElsewhereVoteAlike) {
  for (const std::size_t n : grid::kSizes) {
    if (n == 0) continue;
    const Ranks ranks(6, n, 2, 10);
    std::vector<std::int32_t> sums(n);
    for (std::size_t i = 0; i < n; ++i) sums[i] = ranks.sum(i);
    const std::size_t n_words = words_for(n);
    Words positive(n_words), nonzero(n_words), ternary(n_words);
    vote_sums(sums, kHash, positive, {});
    vote_sums(sums, kHash, ternary, nonzero);
    Words want(n_words), want_ternary(n_words), want_nonzero(n_words);
    ASSERT_TRUE(vote_levels({ranks.rows, ranks.shape, 0}, kHash, want));
    ASSERT_TRUE(vote_levels_ternary({ranks.rows, ranks.shape, 0}, want_ternary, want_nonzero));
    EXPECT_TRUE(grid::same_words(positive, want)) << n;
    EXPECT_TRUE(grid::same_words(ternary, want_ternary)) << n;
    EXPECT_TRUE(grid::same_words(nonzero, want_nonzero)) << n;
  }
}

TEST(LevelVote, NoRowsVoteForNothing) {
  Words positive{~std::uint64_t{0}}, nonzero{~std::uint64_t{0}};
  EXPECT_TRUE(vote_levels({{}, {1, 4}, 0}, kHash, positive));
  EXPECT_EQ(positive[0], 0u);
  EXPECT_TRUE(vote_levels_ternary({{}, {1, 4}, 0}, positive, nonzero));
  EXPECT_EQ(nonzero[0], 0u);
}

PRIDE_ON_EVERY_ISA(LevelKernels);

}  // namespace
}  // namespace pride::kernels::levels_test
