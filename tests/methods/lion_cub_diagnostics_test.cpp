// Lion Cub: its measurements on samples.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "support/training.h"

namespace pride::lion_cub_diagnostics_test {
namespace {

using testing::Training;

// On gradients with known properties.
TEST(LionCub, DiagnosticsAreWhatTheySay) {
  const Layout layout({{"agreed", {64}}, {"torn", {64}}});
  Training run{.world = 4, .steps = 2};
  run.options.method = "lion-cub";
  run.options.options = {{"bits", "4"}, {"probe_every", "2"}, {"sync", "none"}, {"shared", "no"}};
  // "agreed": all ranks the same. "torn": three small votes against a large one with the sign of
  // the mean; levels of the L1 scale, +-7 at twice the mean, cannot show it, for all |g| are alike
  run.grad = [](int rank, std::int64_t, std::size_t tensor, std::size_t i) {
    const float sign = i % 2 == 0 ? 1.0f : -1.0f;
    if (tensor == 0) return sign;
    return rank == 0 ? 10 * sign : -sign;
  };
  const auto ranks = testing::train(layout, run);
  for (const auto& rank : ranks) {
    ASSERT_EQ(rank.reports[1].diagnostics.size(), 2u);
    EXPECT_TRUE(rank.reports[0].diagnostics.empty()) << "only every second step is measured";
    const TensorDiagnostics& agreed = rank.reports[1].diagnostics[0];
    EXPECT_EQ(agreed.unanimous, 1);
    EXPECT_EQ(agreed.momentum_variance, 0);
    EXPECT_EQ(agreed.vote_error, 0);
    const TensorDiagnostics& torn = rank.reports[1].diagnostics[1];
    EXPECT_EQ(torn.unanimous, 0);
    EXPECT_EQ(torn.sign_vote_error, 1);
    EXPECT_EQ(torn.vote_error, 1);
    EXPECT_EQ(torn.vote_loss, 1);
    // momenta 10, -1, -1, -1 of a unit: mean square 25.75, mean 1.75
    EXPECT_NEAR(torn.momentum_variance, (25.75 - 1.75 * 1.75) / 25.75, 1e-6);
  }
}

// Where the mean is zero no vote is right or wrong.
TEST(LionCub, DiagnosticsLeaveOutCoordinatesWhoseMeanIsZero) {
  const Layout layout({{"rows", {4, 64}}});
  Training run{.world = 3, .steps = 1};
  run.options.method = "lion-cub";
  run.options.options = {{"bits", "1"}, {"sync", "none"}, {"probe_every", "1"}};
  run.grad = [](int rank, std::int64_t, std::size_t, std::size_t i) {
    return static_cast<int>(i / 64) == rank ? 1.0f : 0.0f;
  };
  const auto ranks = testing::train(layout, run);
  const TensorDiagnostics& d = ranks[0].reports[0].diagnostics.at(0);
  EXPECT_EQ(d.samples, 12u);  // of 16: the last row is touched by no rank
  EXPECT_EQ(d.sign_vote_error, 0);
}

}  // namespace
}  // namespace pride::lion_cub_diagnostics_test
