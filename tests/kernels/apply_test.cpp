// apply_signs, apply_ternary, apply_counts, apply_decay against the scalar oracle, bit for bit.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kernels/isa_test.h"
#include "kernels/kernels.h"
#include "reference/kernels_ref.h"
#include "support/grid.h"

namespace pride::kernels::apply_test {
namespace {

using grid::Guarded;
using reference::Floats;
using reference::Words;

const Step kStep{.decay = {1 - 3e-4f * 0.1f, 1.0f}, .lr = 3e-4f};

// Calls body(n, offset, x) for the grid of sizes, offsets and both kinds of values.
template <typename Body>
void over_grid(const Body& body) {
  for (const std::size_t n : grid::kSizes) {
    for (const std::size_t offset : grid::kOffsets) {
      for (const bool wild : {false, true}) {
        SCOPED_TRACE(::testing::Message() << "n " << n << " offset " << offset << " wild " << wild);
        body(offset, wild ? grid::wild_floats(n, 21) : grid::awkward_floats(n, 22));
      }
    }
  }
}

class Apply : public OnEveryIsa {};

TEST_P(Apply, SignsEqualOracle) {
  over_grid([](std::size_t offset, const Floats& x) {
    const Words bits = grid::random_words(words_for(x.size()), 31);
    Guarded<float> gx(x, offset);
    apply_signs(bits, kStep, gx.span());
    EXPECT_TRUE(grid::same_floats(gx.values(), reference::apply_signs(bits, kStep, x)));
    EXPECT_TRUE(gx.intact());
  });
}

TEST_P(Apply, TernaryEqualsOracle) {
  over_grid([](std::size_t offset, const Floats& x) {
    const Words positive = grid::random_words(words_for(x.size()), 32);
    const Words nonzero = grid::random_words(words_for(x.size()), 33);
    Guarded<float> gx(x, offset);
    apply_ternary(positive, nonzero, kStep, gx.span());
    EXPECT_TRUE(
        grid::same_floats(gx.values(), reference::apply_ternary(positive, nonzero, kStep, x)));
    EXPECT_TRUE(gx.intact());
  });
}

TEST_P(Apply, CountsEqualOracle) {
  for (const int world : {1, 3, 4, 7, 33, 1000, 65535}) {
    over_grid([world](std::size_t offset, const Floats& x) {
      std::size_t n_planes = 1;
      while ((1 << n_planes) <= world) ++n_planes;
      const std::size_t stride = words_for(x.size()) + 3;
      const Words planes = grid::random_words(n_planes * stride, 34);
      const int present = world - world / 3;
      Guarded<float> gx(x, offset);
      apply_counts(planes, n_planes, stride, present, world, kStep, gx.span());
      EXPECT_TRUE(grid::same_floats(
          gx.values(),
          reference::apply_counts(planes, n_planes, stride, present, world, kStep, x)));
      EXPECT_TRUE(gx.intact());
    });
  }
}

TEST_P(Apply, DecayAndScaleMultiply) {
  over_grid([](std::size_t offset, const Floats& x) {
    Floats want = x;
    for (float& value : want) value = value * 0.999f;
    Guarded<float> decayed(x, offset), scaled(x, offset);
    apply_decay(0.999f, decayed.span());
    scale(0.999f, scaled.span());
    EXPECT_TRUE(grid::same_floats(decayed.values(), want));
    EXPECT_TRUE(grid::same_floats(scaled.values(), want));
    EXPECT_TRUE(decayed.intact() && scaled.intact());
  });
}

TEST_P(Apply, RoundsTheDecayBeforeTheStep) {
  // x near lr/decay, so that x*decay - lr nearly cancels and an FMA gives other bits
  const Step step{.decay = 0.9997f, .lr = 0.3f};
  Floats x(4096);
  std::size_t differ = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = step.lr / step.decay.same * (1 + 1e-6f * static_cast<float>(i % 97));
    const float product = x[i] * step.decay.same;
    differ += product - step.lr != std::fma(x[i], step.decay.same, -step.lr);
  }
  ASSERT_GT(differ, 1000u) << "the inputs must be able to show a contraction";
  const Words bits(words_for(x.size()), ~std::uint64_t{0});
  const Floats want = reference::apply_signs(bits, step, x);
  apply_signs(bits, step, x);
  EXPECT_TRUE(grid::same_floats(x, want));
}

PRIDE_ON_EVERY_ISA(Apply);

}  // namespace
}  // namespace pride::kernels::apply_test
