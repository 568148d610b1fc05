// The dense kernels against the scalar oracle, bit for bit: dense_lion, adamw, sums of rows,
// first_non_finite and sum_squares.
// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <limits>

#include "kernels/isa_test.h"
#include "kernels/kernels.h"
#include "reference/kernels_ref.h"
#include "support/grid.h"

namespace pride::kernels::dense_test {
namespace {

using grid::Guarded;
using reference::Floats;

const Blend kBlend{
    .beta1 = 0.9f, .one_minus_beta1 = 0.1f, .beta2 = 0.99f, .one_minus_beta2 = 0.01f};
const Step kStep{.decay = {0.99997f, 1.0f}, .lr = 3e-4f};
const AdamScalars kAdam{.beta1 = 0.9f,
                        .one_minus_beta1 = 0.1f,
                        .beta2 = 0.999f,
                        .one_minus_beta2 = 0.001f,
                        .step_size = 1.1e-3f,
                        .sqrt_bias2 = 0.31f,
                        .eps = 1e-8f,
                        .decay = {0.9999f, 1.0f}};

class Dense : public OnEveryIsa {};

TEST_P(Dense, LionEqualsOracle) {
  for (const std::size_t n : grid::kSizes) {
    for (const std::size_t offset : grid::kOffsets) {
      SCOPED_TRACE(::testing::Message() << "n " << n << " offset " << offset);
      const Floats g = grid::wild_floats(n, 41);
      Floats m = grid::awkward_floats(n, 42), x = grid::awkward_floats(n, 43);
      Guarded<float> gg(g, offset), gm(m), gx(x, offset);
      dense_lion(gg.span(), kBlend, kStep, gm.span(), gx.span());
      reference::dense_lion(g, kBlend, kStep, m, x);
      EXPECT_TRUE(grid::same_floats(gm.values(), m));
      EXPECT_TRUE(grid::same_floats(gx.values(), x));
      EXPECT_TRUE(gg.intact() && gm.intact() && gx.intact());
    }
  }
}

TEST_P(Dense, SgdMomentumEqualsOracle) {
  for (const std::size_t n : grid::kSizes) {
    for (const bool nesterov : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "n " << n << " nesterov " << nesterov);
      const Floats g = grid::wild_floats(n, 51);
      Floats m = grid::awkward_floats(n, 52), x = grid::awkward_floats(n, 53);
      Guarded<float> gg(g, 1), gm(m), gx(x, 3);
      sgd_momentum(gg.span(), 0.9f, nesterov, kStep, gm.span(), gx.span());
      reference::sgd_momentum(g, 0.9f, nesterov, kStep, m, x);
      EXPECT_TRUE(grid::same_floats(gm.values(), m));
      EXPECT_TRUE(grid::same_floats(gx.values(), x));
      EXPECT_TRUE(gg.intact() && gm.intact() && gx.intact());
    }
  }
}

TEST_P(Dense, AdamWEqualsOracle) {
  for (const std::size_t n : grid::kSizes) {
    for (const std::size_t offset : grid::kOffsets) {
      SCOPED_TRACE(::testing::Message() << "n " << n << " offset " << offset);
      const Floats g = grid::wild_floats(n, 44);
      Floats m = grid::awkward_floats(n, 45), v = grid::awkward_floats(n, 46);
      Floats x = grid::awkward_floats(n, 47);
      for (float& value : v) value = std::fabs(value);
      Guarded<float> gg(g, offset), gm(m), gv(v, offset), gx(x);
      adamw(gg.span(), kAdam, gm.span(), gv.span(), gx.span());
      reference::adamw(g, kAdam, m, v, x);
      EXPECT_TRUE(grid::same_floats(gm.values(), m));
      EXPECT_TRUE(grid::same_floats(gv.values(), v));
      EXPECT_TRUE(grid::same_floats(gx.values(), x));
      EXPECT_TRUE(gg.intact() && gm.intact() && gv.intact() && gx.intact());
    }
  }
}

TEST_P(Dense, RowsAreSummedInOrder) {
  for (const std::size_t n : grid::kSizes) {
    for (const std::size_t n_rows : {1, 2, 3, 4, 7, 33}) {
      SCOPED_TRACE(::testing::Message() << n_rows << " rows of " << n);
      std::vector<Guarded<float>> storage;
      std::vector<const float*> rows;
      for (std::size_t r = 0; r < n_rows; ++r) storage.emplace_back(grid::wild_floats(n, r), r % 3);
      for (auto& row : storage) rows.push_back(row.span().data());
      const Floats sum = reference::sum_rows(rows, n);
      Floats mean = sum;
      for (float& value : mean) value = value / 7.0f;
      Guarded<float> out(n, 1);
      mean_rows(rows, 7, out.span());
      EXPECT_TRUE(grid::same_floats(out.values(), mean));
      sum_rows(rows, storage.back().span());  // in place, over the last row
      EXPECT_TRUE(grid::same_floats(storage.back().values(), sum));
      EXPECT_TRUE(out.intact() && storage.back().intact());
    }
  }
}

TEST_P(Dense, MeanMayOverwriteTheFirstRow) {
  Floats a = grid::awkward_floats(1000, 51);
  const Floats b = grid::awkward_floats(1000, 52);
  const std::vector<const float*> rows{a.data(), b.data()};
  Floats want = reference::sum_rows(rows, a.size());
  for (float& value : want) value = value / 2.0f;
  mean_rows(rows, 2, a);
  EXPECT_TRUE(grid::same_floats(a, want));
}

TEST_P(Dense, FindsTheFirstNonFinite) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const std::size_t n : grid::kSizes) {
    Guarded<float> x(grid::awkward_floats(n, 61), 1);  // NaN on both sides
    EXPECT_EQ(first_non_finite(x.span()), kAllFinite) << "n " << n;
    for (std::size_t at = n; at-- > 0; at -= std::min(at, n / 50)) {
      x.span()[at] = at % 3 == 0 ? kInf : at % 3 == 1 ? -kInf : std::nanf("");
      EXPECT_EQ(first_non_finite(x.span()), at) << "n " << n;
    }
  }
}

TEST_P(Dense, SumOfSquaresEqualsOracle) {
  for (const std::size_t n : grid::kSizes) {
    for (const std::size_t offset : grid::kOffsets) {
      const Floats x = grid::awkward_floats(n, 71);
      Guarded<float> gx(x, offset);
      const double got = sum_squares(gx.span()), want = reference::sum_squares(x);
      EXPECT_EQ(std::bit_cast<std::uint64_t>(got), std::bit_cast<std::uint64_t>(want))
          << "n " << n << " expected " << want << " actual " << got;
    }
  }
}

PRIDE_ON_EVERY_ISA(Dense);

}  // namespace
}  // namespace pride::kernels::dense_test
