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
  EXPECT_NE(texts[0].find("dgc is not supported on a device"), std::string::npos) << texts[0];
}

TEST(Device, RefusesOptionsOfTheHost) {
  for (const auto& [method, refused] :
       {std::pair{"lion-cub:scale=l0", "lion-cub: option scale = l0"},
        {"lion-cub:rounding=stochastic", "lion-cub: option rounding = stochastic"},
        {"lion-cub:sync_format=bf16", "lion-cub: option sync_format = fp32 or bf16"},
        {"lion:dense=bf16", "lion: option dense = bf16"},
        {"dsm:dense=bf16", "dsm: option dense = bf16"},  // of its outer step
        {"local-vote:h=2,delay=1", "local-vote: option fragments or delay"}}) {
    const auto texts = testing::errors_of<InvalidArgument>(1, [&](Communicator& comm) {
      OptimizerOptions options;
      testing::set_method(options, method);
      options.device = std::make_shared<TestDevice>();
      Optimizer(comm, Layout(testing::kTensors), options);
    });
    EXPECT_TRUE(texts[0].starts_with(concat(refused, " is not supported on a device; ")))
        << texts[0];
    EXPECT_TRUE(texts[0].ends_with("use tensors in host memory")) << texts[0];
  }
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
