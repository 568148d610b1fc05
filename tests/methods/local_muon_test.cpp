// Muon as the rule of local steps.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "pride/error.h"
#include "pride/registry.h"
#include "rules/orthogonalise.h"
#include "support/texts.h"
#include "support/training.h"

namespace pride::local_muon_test {
namespace {

// FedAvg of one worker that exchanges every step is the worker's rule, but for rounding.
TEST(LocalMuon, HasTheMomentumOfItsGroup) {
  if (!rules::has_blas()) GTEST_SKIP() << "this build has no CBLAS";
  const Layout layout({{"w", {8, 16}}, {"b", {5}}});
  std::vector<std::vector<float>> ends;
  for (const double momentum : {0.95, 0.5, 0.0}) {
    testing::Training run{.world = 1, .steps = 4};
    run.options = {.method = "muon", .groups = {{.lr = 1e-2, .momentum = momentum}}};
    const auto serial = testing::train(layout, run)[0].params;
    run.options.method = "diloco";
    run.options.options = {{"h", "1"}, {"local", "muon"}, {"outer_beta1", "0"}, {"outer_lr", "1"}};
    const auto local = testing::train(layout, run)[0].params;
    ASSERT_EQ(local.size(), serial.size());
    for (std::size_t i = 0; i < local.size(); ++i) ASSERT_NEAR(local[i], serial[i], 1e-6) << i;
    ends.push_back(local);
  }
  EXPECT_GT(std::abs(ends[0][0] - ends[1][0]), 1e-4);
  EXPECT_GT(std::abs(ends[1][0] - ends[2][0]), 1e-4);
}

// A matrix takes its step when its last part has come: parts that were placed before follow.
TEST(LocalMuon, TheWholeMatrixMovesInItsStep) {
  if (!rules::has_blas()) GTEST_SKIP() << "this build has no CBLAS";
  const Layout layout({{"w", {64, 48}}, {"b", {5}}, {"v", {40, 24}}});
  for (const std::string fragments : {"1", "2"}) {
    run_world(3, [&](Communicator& comm) {
      OptimizerOptions options{.method = "local-vote",
                               .options = {{"h", "4"}, {"local", "muon"}, {"fragments", fragments}},
                               .groups = {{.lr = 1e-2}},
                               .bucket_coords = 512};
      if (fragments == "2") options.options["delay"] = "1";
      Optimizer optimizer(comm, layout, options);
      FlatBuffer x(layout.flat_size()), grads(layout.flat_size()), y(layout.flat_size());
      testing::fill(layout, x, testing::initial);
      for (std::int64_t step = 0; step < 9; ++step) {
        testing::fill(layout, grads, [&](std::size_t t, std::size_t i) {
          return testing::gradient(comm.rank(), step, t, i);
        });
        optimizer.step(x.span(), grads.span());
        std::ranges::copy(x.span(), y.span().begin());
        optimizer.to_common(y.span());
        optimizer.to_local(y.span());
        EXPECT_EQ(param_hash(layout, x.span()), param_hash(layout, y.span()))
            << fragments << " fragments, step " << step;
      }
    });
  }
}

TEST(LocalMuon, AMomentumThatTakesNoGradientIsRefused) {
  if (!rules::has_blas()) GTEST_SKIP() << "this build has no CBLAS";
  run_world(1, [](Communicator& comm) {
    const Layout layout({{"w", {1}}});
    for (const char* method : {"muon", "local-ef"}) {
      OptimizerOptions options{.method = method};
      if (options.method == "local-ef") options.options = {{"local", "muon"}};
      for (const double momentum : {1.0, 0.999999999999}) {
        options.groups = {{.momentum = momentum}};
        texts::expect_error<InvalidArgument>([&] { Optimizer(comm, layout, options); },
                                             {"group 0: momentum = 1"});
      }
    }
    texts::expect_error<InvalidArgument>(
        [&] { Optimizer(comm, layout, {.method = "local-ef", .groups = {{.momentum = 0.9}}}); },
        {"group 0: local-ef has no momentum"});
  });
}

}  // namespace
}  // namespace pride::local_muon_test
