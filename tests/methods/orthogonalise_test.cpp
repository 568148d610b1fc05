// Newton-Schulz in float32 products against the same in double.
// SPDX-License-Identifier: Apache-2.0
#include "rules/orthogonalise.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "pride/error.h"
#include "reference/newton_schulz_ref.h"
#include "support/training.h"

namespace pride::orthogonalise_test {
namespace {

using reference::Dense;
using reference::kNewtonSchulzTolerance;
using testing::gradient;

class OrthogonaliserTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!rules::has_blas()) GTEST_SKIP() << "this build has no CBLAS";
  }
};

TEST_F(OrthogonaliserTest, NewtonSchulzIsThatOfDoubleWithinTolerance) {
  for (const auto& [rows, cols] : std::vector<std::pair<std::size_t, std::size_t>>{
           {1, 1}, {2, 3}, {33, 64}, {64, 33}, {100, 100}, {5, 400}}) {
    Dense u{rows, cols, std::vector<double>(rows * cols)};
    std::vector<float> got(u.v.size());
    for (std::size_t i = 0; i < got.size(); ++i) u.v[i] = got[i] = gradient(3, 7, rows, i);
    rules::Orthogonaliser(5).run({got.data(), rows, cols, cols});
    const Dense want = reference::newton_schulz(u, 5);
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], want.v[i], kNewtonSchulzTolerance)
          << rows << " x " << cols << ", index " << i;
    }
    // rows of a wide matrix are nearly orthonormal: the trace of X X^T is near their number
    double squares = 0;
    for (const float e : got) squares += static_cast<double>(e) * e;
    const auto least = static_cast<double>(std::min(rows, cols));
    EXPECT_GT(squares, 0.4 * least) << rows << " x " << cols;
    EXPECT_LT(squares, 1.5 * least) << rows << " x " << cols;
  }
}

// Small matrices after few iterations, by both ways: a wrong digit of a coefficient shows, and an
// iteration too many. Five iterations on large ones hide both.
TEST_F(OrthogonaliserTest, EachIterationIsThatOfDouble) {
  for (const auto& [rows, cols] : std::vector<std::pair<std::size_t, std::size_t>>{
           {1, 1}, {2, 3}, {3, 2}, {2, 7}, {7, 2}, {6, 6}, {5, 11}, {11, 5}}) {
    double tolerance = 1e-6;
    for (int iterations = 1; iterations <= 6; ++iterations) {
      tolerance *= 3.4445;
      Dense u{rows, cols, std::vector<double>(rows * cols)};
      std::vector<float> got(u.v.size());
      for (std::size_t i = 0; i < got.size(); ++i) u.v[i] = got[i] = gradient(3, 7, rows, i);
      rules::Orthogonaliser(iterations).run({got.data(), rows, cols, cols});
      const Dense want = reference::newton_schulz(u, iterations);
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_NEAR(got[i], want.v[i], tolerance)
            << rows << " x " << cols << ", " << iterations << " iterations, index " << i;
      }
    }
  }
}

// The same values by the factor, whatever the shape; a part of a wider matrix leaves the rest
// alone.
TEST_F(OrthogonaliserTest, ByTheFactorTheSameWithinTolerance) {
  constexpr std::size_t kStride = 80;
  for (const auto& [rows, cols] :
       std::vector<std::pair<std::size_t, std::size_t>>{{1, 1}, {33, 64}, {64, 33}, {40, 40}}) {
    Dense u{rows, cols, std::vector<double>(rows * cols)};
    std::vector<float> got(rows * kStride, 7.0f);
    for (std::size_t i = 0; i < u.v.size(); ++i) {
      u.v[i] = got[i / cols * kStride + i % cols] = gradient(3, 7, rows, i);
    }
    const rules::MatrixSpan view{got.data(), rows, cols, kStride};
    std::vector<float> factor(view.shorter() * view.shorter());
    rules::Orthogonaliser newton_schulz(5);
    newton_schulz.run(view, factor, true);
    const Dense want = reference::newton_schulz(u, 5);
    Dense next = want;
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (i % kStride < cols) {
        const double was = want.at(i / kStride, i % kStride);
        ASSERT_NEAR(got[i], was, kNewtonSchulzTolerance) << rows << " x " << cols << ", " << i;
        next.v[i / kStride * cols + i % kStride] = got[i];
      } else {
        ASSERT_EQ(got[i], 7.0f) << i;
      }
    }
    // the kept factor P of another matrix X: P X / |X|
    newton_schulz.run(view, factor, false);
    const Dense p{view.shorter(), view.shorter(),
                  std::vector<double>(factor.begin(), factor.end())};
    next = reference::by_factor(p, next);
    for (std::size_t i = 0; i < next.v.size(); ++i) {
      ASSERT_NEAR(got[i / cols * kStride + i % cols], next.v[i], kNewtonSchulzTolerance)
          << rows << " x " << cols << ", index " << i;
    }
  }
}

TEST_F(OrthogonaliserTest, ZerosStayZeros) {
  std::vector<float> zeros(12, 0.0f);
  rules::Orthogonaliser(5).run({zeros.data(), 3, 4, 4});
  for (const float e : zeros) EXPECT_EQ(e, 0.0f);
  std::vector<float> denormals(12, 1e-41f);
  rules::Orthogonaliser(5).run({denormals.data(), 3, 4, 4});
  for (const float e : denormals) EXPECT_EQ(e, 0.0f);
}

// What decides whether a kept factor was ever made.
TEST_F(OrthogonaliserTest, TheFactorOfZerosIsZero) {
  std::vector<float> zeros(12, 0.0f), factor(9, 7.0f);
  rules::Orthogonaliser(5).run({zeros.data(), 3, 4, 4}, factor, true);
  EXPECT_EQ(factor, std::vector<float>(9, 0.0f));
}

TEST_F(OrthogonaliserTest, SmallMatricesHaveTheDirectionOfLargeOnes) {
  std::vector<float> large(12), small(12);
  for (std::size_t i = 0; i < 12; ++i) {
    large[i] = gradient(3, 7, 1, i);
    small[i] = large[i] * 0x1p-90f;
  }
  rules::Orthogonaliser(5).run({large.data(), 3, 4, 4});
  rules::Orthogonaliser(5).run({small.data(), 3, 4, 4});
  EXPECT_EQ(small, large);
}

// Both ways round differently: the bits tell which one was taken.
TEST_F(OrthogonaliserTest, MatricesLongerThanTwiceTheirWidthGoByTheFactor) {
  for (const auto& [rows, cols] :
       std::vector<std::pair<std::size_t, std::size_t>>{{8, 16}, {16, 8}, {8, 17}, {17, 8}}) {
    std::vector<float> got(rows * cols), other(rows * cols), factor(64);
    for (std::size_t i = 0; i < got.size(); ++i) got[i] = other[i] = gradient(3, 7, rows, i);
    rules::Orthogonaliser(5).run({got.data(), rows, cols, cols});
    rules::Orthogonaliser(5).run({other.data(), rows, cols, cols}, factor, true);
    EXPECT_EQ(got == other, std::max(rows, cols) == 17) << rows << " x " << cols;
  }
}

// X X^T of both halves: r r c; A A: r r r; Q X: 2 r r c.
TEST(NewtonSchulzOperations, AreThoseByHand) {
  EXPECT_EQ(rules::newton_schulz_operations(3, 6, 5), 5 * (3 * 9 * 6 + 27));
  // once X X^T and P X; A A in each; Q A, (Q A) Q and, from the second on, Q P
  EXPECT_EQ(rules::factor_operations(3, 7, 5), 9 * 7 + 5 * 27 + 4 * 4 * 27 + 4 * 2 * 27);
  EXPECT_EQ(rules::newton_schulz_operations(3, 7, 5),
            rules::factor_operations(3, 7, 5) + 2 * 9 * 7);
}

TEST_F(OrthogonaliserTest, NoIterationsAreRefused) {
  EXPECT_THROW(rules::Orthogonaliser(0), InvalidArgument);
}

}  // namespace
}  // namespace pride::orthogonalise_test
