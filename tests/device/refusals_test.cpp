// Refusals of optimizers on devices, the same on all ranks.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "pride/optimizer.h"
#include "rules/orthogonalise.h"
#include "support/test_device.h"

namespace pride {
namespace {

TEST(Device, RefusesAMethodOfTheHost) {
  const auto texts = testing::errors_of<InvalidArgument>(1, [&](Communicator& comm) {
    OptimizerOptions options{.method = "dgc"};
    options.device = std::make_shared<TestDevice>();
    Optimizer(comm, Layout(testing::kTensors), options);
  });
  EXPECT_NE(texts[0].find("dgc does not run on devices"), std::string::npos) << texts[0];
}

// Votes of orthogonalised blends may come from anywhere; the mean is orthogonalised on every rank.
TEST(RanksOnHostAndDevice, AreRefusedWhereTheirMatrixProductsWouldDiffer) {
  if (!rules::has_blas()) GTEST_SKIP() << "this build has no CBLAS";
  const Layout layout({{"w", {6, 5}}});
  const auto refusal = [&](const std::string& method) {
    std::array<std::string, 2> texts;
    run_world(2, [&](Communicator& comm) {
      OptimizerOptions options{.method = method,
                               .orthogonalise = [](const DeviceMatrices&, void*) {}};
      if (comm.rank() == 1) options.device = std::make_shared<TestDevice>();
      try {
        Optimizer optimizer(comm, layout, options);
      } catch (const InvalidArgument& e) {
        texts[static_cast<std::size_t>(comm.rank())] = e.what();
      }
    });
    EXPECT_EQ(texts[0].empty(), texts[1].empty()) << method;
    return texts[0];
  };
  EXPECT_EQ(refusal("dlion-muon"), "");
  EXPECT_EQ(refusal("adamw"), "");
  EXPECT_NE(refusal("muon").find("place of its matrix products"), std::string::npos);
}

}  // namespace
}  // namespace pride
