// signsgd-ef and onebit-adam: the change of stage, sums that overflow, refused options.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "pride/error.h"
#include "support/texts.h"
#include "support/training.h"

namespace pride::error_feedback_errors_test {
namespace {

// Gradients of one size: Adam then moves every coordinate by lr, in both stages, if the bias
// corrections fit. Without v's, the step would shrink eighteenfold at this switch.
TEST(OneBitAdam, StepsAreOfOneSizeAcrossTheSwitch) {
  const Layout layout({{"w", {5000}}});
  run_world(2, [&](Communicator& comm) {
    Optimizer optimizer(
        comm, layout,
        {.method = "onebit-adam", .options = {{"freeze_steps", "3"}}, .groups = {{.lr = 0.01}}});
    FlatBuffer x(layout.flat_size()), g(layout.flat_size());
    for (std::size_t i = 0; i < 5000; ++i) g.span()[i] = i % 3 == 0 ? 0.25f : -0.25f;
    for (int step = 0; step < 10; ++step) {
      const float before = x.span()[7];
      optimizer.step(x.span(), g.span());
      EXPECT_NEAR(x.span()[7] - before, 0.01, 1e-6) << "step " << step;
    }
  });
}

TEST(ErrorFeedbackMethods, ReportASumThatOverflows) {
  for (const char* method : {"signsgd-ef", "onebit-adam"}) {
    run_world(2, [&](Communicator& comm) {
      const Layout layout({{"a", {64}}, {"b", {64}}});
      OptimizerOptions options{.method = method, .groups = {{.lr = 1.0}}};
      const bool adam = options.method == "onebit-adam";
      if (adam) {
        options.options = {{"freeze_steps", "1"}};
        options.groups[0].beta1 = 0;
      }
      Optimizer optimizer(comm, layout, options);
      FlatBuffer x(layout.flat_size()), g(layout.flat_size());
      if (adam) optimizer.step(x.span(), g.span());
      std::fill_n(g.data() + 64, 64, 3e38f);
      texts::expect_error<NonFiniteGradient>([&] { optimizer.step(x.span(), g.span()); },
                                             {"the sum of the ranks' gradients of 'b' overflows"});
    });
  }
}

TEST(SignSgdErrorFeedback, RefusesAMomentumThatIsNone) {
  for (const char* bad : {"1", "-0.1", "nan", "0.999999999999", "half", "", "0.5x"}) {
    run_world(1, [&](Communicator& comm) {
      EXPECT_THROW(Optimizer(comm, Layout({{"w", {2}}}),
                             {.method = "signsgd-ef", .options = {{"momentum", bad}}}),
                   InvalidArgument)
          << "'" << bad << "'";
    });
  }
}

TEST(OneBitAdam, RefusesAWarmUpThatIsNoNumberOfSteps) {
  for (const char* bad : {"0", "-1", "1.5", "ten", "", "99999999999999999999"}) {
    run_world(1, [&](Communicator& comm) {
      EXPECT_THROW(Optimizer(comm, Layout({{"w", {2}}}),
                             {.method = "onebit-adam", .options = {{"freeze_steps", bad}}}),
                   InvalidArgument)
          << "'" << bad << "'";
    });
  }
}

}  // namespace
}  // namespace pride::error_feedback_errors_test
