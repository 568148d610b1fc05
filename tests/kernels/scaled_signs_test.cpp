// The kernels of error feedback against the scalar oracle, bit for bit, on every instruction set.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/scaled_signs.h"

#include <bit>

#include "kernels/isa_test.h"
#include "reference/scaled_signs_ref.h"
#include "support/grid.h"

namespace pride::kernels::scaled_signs_test {
namespace {

using grid::Guarded;
using reference::Floats;
using reference::Words;

const Feedback kFeedback{.keep = 0.9f, .take = 0.1f, .rate = 3e-3f};
const HashWords kHash{.key = 77, .first_word = 5, .flip = 0x3333CCCC5555AAAA, .shift = 13};

class ScaledSigns : public OnEveryIsa {};

TEST_P(ScaledSigns, FeedbackEqualsOracle) {
  for_each_size([](std::size_t n, std::size_t offset) {
    const Floats g = grid::wild_floats(n, 1), m = grid::awkward_floats(n, 2);
    const Floats e = grid::awkward_floats(n, 3);
    Guarded<float> gg(g, offset), gm(m), ge(e, offset), gp(n, 1);
    feedback(gg.span(), gm.span(), ge.span(), kFeedback, gp.span());
    EXPECT_TRUE(grid::same_floats(gp.values(), reference::feedback(g, m, e, kFeedback)));
    EXPECT_TRUE(gg.intact() && gm.intact() && ge.intact() && gp.intact());
  });
}

TEST_P(ScaledSigns, PackingEqualsOracleAndZerosTakeTheHash) {
  for_each_size([](std::size_t n, std::size_t offset) {
    const Floats p = grid::wild_floats(n, 4);
    Guarded<float> gp(p, offset);
    Guarded<std::uint64_t> bits(words_for(n));
    pack_signs(gp.span(), kHash, bits.span());
    EXPECT_TRUE(grid::same_words(bits.values(), reference::pack_signs(p, kHash)));
    EXPECT_TRUE(gp.intact() && bits.intact());
  });
}

TEST_P(ScaledSigns, SumOfMagnitudesEqualsOracle) {
  for_each_size([](std::size_t n, std::size_t offset) {
    const Floats x = grid::awkward_floats(n, 5);
    Guarded<float> gx(x, offset);
    EXPECT_EQ(std::bit_cast<std::uint64_t>(sum_abs(gx.span())),
              std::bit_cast<std::uint64_t>(reference::sum_abs(x)));
  });
}

// The exchange detects a bad gradient by its scale.
TEST_P(ScaledSigns, SumOfMagnitudesIsNotFiniteIfAnyIsNot) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const std::size_t at : {0, 1, 63, 1023, 1024, 4095}) {
    for (const float bad : {kInf, -kInf, std::nanf("")}) {
      Floats x(4096, 1.0f);
      x[at] = bad;
      EXPECT_FALSE(std::isfinite(sum_abs(x))) << bad << " at " << at;
      EXPECT_FALSE(std::isfinite(sum_squares(x))) << bad << " at " << at;
    }
  }
}

// Frames are compared bit for bit, and processors make different NaNs.
TEST_P(ScaledSigns, AScaleThatIsNoNumberIsTheSameNaNEverywhere) {
  for (const std::uint32_t nan : {0x7FC00000U, 0xFFC00000U, 0x7FFFFFFFU, 0xFFC01234U}) {
    for (const std::size_t n : {1, 70, 4096}) {
      for (const Norm norm : {Norm::kMeanAbs, Norm::kRms}) {
        Floats p(n, 1.0f);
        p[n / 2] = std::bit_cast<float>(nan);
        Words bits(words_for(n));
        EXPECT_EQ(std::bit_cast<std::uint32_t>(compress(p, norm, kHash, bits)), 0x7FC00000U)
            << std::hex << nan << ", n " << std::dec << n;
      }
    }
  }
}

TEST_P(ScaledSigns, KeepingFeedbackEqualsOracle) {
  for_each_size([](std::size_t n, std::size_t offset) {
    const Floats g = grid::awkward_floats(n, 6);
    Floats m = grid::awkward_floats(n, 7), e = grid::awkward_floats(n, 8);
    const Words bits = grid::random_words(words_for(n), 9);
    Guarded<float> gg(g, offset), gm(m, offset), ge(e);
    keep_feedback(gg.span(), kFeedback, bits, 0.3f, gm.span(), ge.span());
    reference::keep_feedback(g, kFeedback, bits, 0.3f, m, e);
    EXPECT_TRUE(grid::same_floats(gm.values(), m));
    EXPECT_TRUE(grid::same_floats(ge.values(), e));
    EXPECT_TRUE(gg.intact() && gm.intact() && ge.intact());
  });
}

TEST_P(ScaledSigns, MeanOfSignsEqualsOracle) {
  for_each_size([](std::size_t n, std::size_t offset) {
    for (const std::size_t n_rows : {1, 2, 3, 8, 33}) {
      std::vector<Words> words;
      std::vector<ScaledRow> rows;
      for (std::size_t r = 0; r < n_rows; ++r) {
        words.push_back(grid::random_words(words_for(n), r));
      }
      for (std::size_t r = 0; r < n_rows; ++r) {
        rows.push_back({words[r].data(), r == 1 ? 0.0f : 0.1f * static_cast<float>(r + 1)});
      }
      const Floats e = grid::awkward_floats(n, 10);
      Guarded<float> ge(e, offset), out(n, offset);
      mean_of_signs(rows, static_cast<int>(n_rows), ge.span(), out.span());
      EXPECT_TRUE(grid::same_floats(out.values(),
                                    reference::mean_of_signs(rows, static_cast<int>(n_rows), e)));
      EXPECT_TRUE(ge.intact() && out.intact());
    }
  });
}

TEST_P(ScaledSigns, KeepingTheRemainderEqualsOracle) {
  for_each_size([](std::size_t n, std::size_t offset) {
    const Floats p = grid::awkward_floats(n, 11);
    const Words bits = grid::random_words(words_for(n), 12);
    Floats want = p;
    for (std::size_t i = 0; i < n; ++i) want[i] = p[i] - reference::signed_scale(bits, i, 0.7f);
    Guarded<float> gp(p, offset), ge(n, 3);
    keep_remainder(gp.span(), bits, 0.7f, ge.span());
    EXPECT_TRUE(grid::same_floats(ge.values(), want));
    EXPECT_TRUE(gp.intact() && ge.intact());
  });
}

TEST_P(ScaledSigns, AdamEqualsOracleAndLeavesCoordinatesWithoutVariance) {
  const AdamScalars a{
      .step_size = 1.1e-3f, .sqrt_bias2 = 0.31f, .eps = 1e-8f, .decay = {0.9999f, 1.0f}};
  for_each_size([&](std::size_t n, std::size_t offset) {
    const Words bits = grid::random_words(words_for(n), 13);
    Floats v = grid::awkward_floats(n, 14), m(n), x = grid::awkward_floats(n, 15);
    for (float& value : v) value = std::fabs(value);
    for (std::size_t i = 0; i < n; i += 3) v[i] = 0;
    Guarded<float> gv(v, offset), gm(n, 1), gx(x, offset);
    adam_signs(bits, 0.02f, a, gv.span(), gm.span(), gx.span());
    const Floats before = x;
    reference::adam_signs(bits, 0.02f, a, v, m, x);
    EXPECT_TRUE(grid::same_floats(gm.values(), m));
    EXPECT_TRUE(grid::same_floats(gx.values(), x));
    EXPECT_TRUE(gv.intact() && gm.intact() && gx.intact());
    for (std::size_t i = 0; i < n; i += 3) ASSERT_EQ(gx.values()[i], before[i] * a.decay.same);
  });
}

PRIDE_ON_EVERY_ISA(ScaledSigns);

}  // namespace
}  // namespace pride::kernels::scaled_signs_test
