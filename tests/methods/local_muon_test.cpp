// Muon as the rule of local steps.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "pride/error.h"
#include "pride/registry.h"
#include "rules/orthogonalise.h"
#include "support/training.h"

namespace pride {
namespace {

// FedAvg of one worker that exchanges every step is the worker's rule, but for rounding.
TEST(LocalMuon, HasTheMomentumOfItsOption) {
  if (!rules::has_blas()) GTEST_SKIP() << "this build has no CBLAS";
  const Layout layout({{"w", {8, 16}}, {"b", {5}}});
  std::vector<std::vector<float>> ends;
  for (const std::string momentum : {"0.95", "0.5"}) {
    testing::Training run{.world = 1, .steps = 4};
    run.options = {.method = "muon", .options = {{"momentum", momentum}}, .groups = {{.lr = 1e-2}}};
    const auto serial = testing::train(layout, run)[0].params;
    run.options.method = "diloco";
    run.options.options = {{"h", "1"},
                           {"local", "muon"},
                           {"local_momentum", momentum},
                           {"outer_beta1", "0"},
                           {"outer_lr", "1"}};
    const auto local = testing::train(layout, run)[0].params;
    ASSERT_EQ(local.size(), serial.size());
    for (std::size_t i = 0; i < local.size(); ++i) ASSERT_NEAR(local[i], serial[i], 1e-6) << i;
    ends.push_back(local);
  }
  EXPECT_GT(std::abs(ends[0][0] - ends[1][0]), 1e-4);
}

TEST(LocalMuon, AMomentumThatTakesNoGradientIsRefusedByName) {
  if (!rules::has_blas()) GTEST_SKIP() << "this build has no CBLAS";
  try {
    method_info("local-ef", 4, {{"local", "muon"}, {"local_momentum", "1"}});
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("option local_momentum = '1'"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace pride
