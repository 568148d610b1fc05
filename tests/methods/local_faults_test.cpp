// Gradients that are not finite, between the exchanges of local steps.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>
#include <mutex>
#include <string>

#include "methods/local_run.h"
#include "pride/error.h"

namespace pride::local_faults_test {
namespace {

using testing::kTensors;
using testing::options_of;
using testing::pull;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// No rank waits for one that raised between exchanges: the next exchange fails with its text.
TEST(LocalSteps, ANonFiniteGradientBetweenExchangesFailsTheCommunicator) {
  const Layout layout(kTensors);
  std::vector<std::string> texts(3);
  run_world(3, [&](Communicator& comm) {
    Optimizer optimizer(comm, layout, options_of("local-vote"));
    FlatBuffer x(layout.flat_size()), grads(layout.flat_size());
    try {
      for (int step = 0; step < 4; ++step) {
        grads.span()[layout.tensors()[1].offset] = comm.rank() == 1 && step == 1 ? kNaN : 0;
        optimizer.step(x.span(), grads.span());
      }
    } catch (const Error& e) {
      texts[static_cast<std::size_t>(comm.rank())] = e.what();
    }
  });
  for (const std::string& text : texts) {
    EXPECT_NE(text.find("step 2: NaN or Inf in the gradient of 'w1' on rank 1"), std::string::npos)
        << text;
  }
}

TEST(LocalSteps, SkipDropsTheStepOfTheRankAlone) {
  const Layout layout(kTensors);
  std::vector<std::uint64_t> hashes(3);
  run_world(3, [&](Communicator& comm) {
    OptimizerOptions options = options_of("local-vote");
    options.non_finite = NonFinitePolicy::kSkip;
    Optimizer optimizer(comm, layout, options);
    FlatBuffer x(layout.flat_size()), grads(layout.flat_size());
    for (int step = 0; step < 8; ++step) {
      pull(layout, comm.rank(), x.span(), grads);
      const std::uint64_t before = param_hash(layout, x.span());
      const bool bad = comm.rank() == 1 && (step == 1 || step == 3);
      if (bad) grads.span()[layout.tensors()[1].offset] = kNaN;
      const StepReport report = optimizer.step(x.span(), grads.span());
      EXPECT_EQ(report.skipped, step == 3 || bad) << step;  // in an exchange, of all ranks
      EXPECT_EQ(param_hash(layout, x.span()) == before, report.skipped);
    }
    hashes[static_cast<std::size_t>(comm.rank())] = param_hash(layout, x.span());
  });
  EXPECT_EQ(hashes[0], hashes[1]);
  EXPECT_EQ(hashes[0], hashes[2]);
}

// What a failed step has handed over is forgotten by a load of a state before it.
TEST(LocalSteps, AStepThatIsRepeatedAfterALoadSendsNothingOfTheFailedOne) {
  const Layout layout(kTensors);
  run_world(1, [&](Communicator& comm) {
    OptimizerOptions options = options_of("diloco");
    options.options["h"] = "1";
    Optimizer optimizer(comm, layout, options);
    FlatBuffer x(layout.flat_size()), grads(layout.flat_size());
    const StateDict state = optimizer.save();
    grads.span()[layout.tensors()[1].offset] = kNaN;
    EXPECT_THROW(optimizer.step(x.span(), grads.span()), NonFiniteGradient);
    optimizer.load(state);
    const auto unused = std::make_unique<bool[]>(kTensors.size());
    unused[1] = true;
    EXPECT_NO_THROW(optimizer.step(x.span(), grads.span(), {unused.get(), kTensors.size()}));
  });
}

// A drift is sent by a rank that has no gradient in the exchange's step, too: it counts as a user.

}  // namespace
}  // namespace pride::local_faults_test
