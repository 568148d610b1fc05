// Theory of error feedback: errors stay bounded, one worker is the serial form, and a problem that
// plain scaled signs cannot solve is solved. And the change of stage in onebit-adam.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <tuple>

#include "pride/error.h"
#include "reference/error_feedback_ref.h"
#include "support/training.h"

namespace pride::error_feedback_theory_test {
namespace {

using reference::ErrorFeedbackOracle;
using Floats = std::vector<float>;

double norm(const Floats& x) {
  double sum = 0;
  for (const float value : x) sum += double{value} * value;
  return std::sqrt(sum);
}

Floats gradient_of(int rank, std::int64_t step, std::size_t n) {
  Floats g(n);
  for (std::size_t i = 0; i < n; ++i) g[i] = testing::gradient(rank, step, 0, i);
  return g;
}

// ||e'|| <= q (lr G + ||e||), q = sqrt(1 - delta), so ||e|| <= lr G q / (1 - q). The gradients are
// uniform in [-8, 8]: G <= 8 sqrt(n) / (1 - beta1). The server compresses means of C(p), and
// ||C(p)|| <= ||p||. The oracle measures delta; its errors are those of the real run, bit for bit.
TEST(SignSgdErrorFeedback, ErrorsStayBelowTheBoundFor2000Steps) {
  constexpr std::size_t kN = 5000;
  constexpr int kWorld = 2, kSteps = 2000;
  const double lr = 0.01, beta1 = 0.9, delta = 0.25;
  const double q = std::sqrt(1 - delta), g = 8 * std::sqrt(kN) / (1 - beta1);
  const double bound = lr * g * q / (1 - q), server_bound = (lr * g + bound) * q / (1 - q);

  ErrorFeedbackOracle oracle(ErrorFeedbackOracle::Kind::kSignSgd, kWorld, Floats(kN),
                             {.lr = lr, .beta1 = beta1}, 0, 0);
  double largest_early = 0, largest_late = 0;
  for (int step = 0; step < kSteps; ++step) {
    oracle.step({gradient_of(0, step, kN), gradient_of(1, step, kN)}, {false, false});
    ASSERT_GE(oracle.worst_delta(), delta) << "step " << step;
    ASSERT_LE(norm(oracle.error(0)), bound) << "step " << step;
    ASSERT_LE(norm(oracle.error(1)), bound) << "step " << step;
    ASSERT_LE(norm(oracle.server_error()), server_bound) << "step " << step;
    double& largest = step < kSteps / 2 ? largest_early : largest_late;
    largest = std::max({largest, norm(oracle.error(0)), norm(oracle.server_error())});
  }
  EXPECT_LE(largest_late, 1.1 * largest_early);  // no slow growth either

  run_world(kWorld, [&](Communicator& comm) {
    const Layout layout({{"w", {kN}}});
    Optimizer optimizer(
        comm, layout,
        {.method = "signsgd-ef", .options = {{"momentum", "0.9"}}, .groups = {{.lr = lr}}});
    FlatBuffer x(layout.flat_size()), grad(layout.flat_size());
    for (int step = 0; step < kSteps; ++step) {
      std::ranges::copy(gradient_of(comm.rank(), step, kN), grad.span().begin());
      optimizer.step(x.span(), grad.span());
    }
    EXPECT_EQ(optimizer.save().tensors.at("error/w").values,
              oracle.error(static_cast<std::size_t>(comm.rank())));
  });
}

// Algorithm 1 of Karimireddy et al., with momentum, in one loop for one block.
TEST(SignSgdErrorFeedback, EqualsTheSerialFormWhenAlone) {
  constexpr std::size_t kN = 1000;
  const float lr = 0.01f, beta1 = 0.9f, decay = static_cast<float>(1 - 0.01 * 0.1);
  Floats x(kN, 0.5f), m(kN), e(kN), p(kN);
  run_world(1, [&](Communicator& comm) {
    const Layout layout({{"w", {kN}}});
    Optimizer optimizer(comm, layout,
                        {.method = "signsgd-ef",
                         .options = {{"momentum", "0.9"}},
                         .groups = {{.lr = 0.01, .weight_decay = 0.1}}});
    FlatBuffer real(layout.flat_size()), grad(layout.flat_size());
    std::fill_n(real.data(), kN, 0.5f);
    for (int step = 0; step < 50; ++step) {
      Floats g = gradient_of(0, step, kN);
      for (float& value : g) value = value == 0 ? 0.5f : value;  // no zero takes a hash bit
      double sum[16] = {};
      for (std::size_t i = 0; i < kN; ++i) {
        m[i] = beta1 * m[i] + g[i];
        p[i] = lr * m[i] + e[i];
        sum[i % 16] += std::fabs(double{p[i]});
      }
      for (int width = 1; width < 16; width *= 2) {
        for (int k = 0; k < 16; k += 2 * width) sum[k] += sum[k + width];
      }
      const auto scale = static_cast<float>(sum[0] / kN);
      for (std::size_t i = 0; i < kN; ++i) {
        const float sent = p[i] > 0 ? scale : -scale;
        x[i] = x[i] * decay - sent;
        e[i] = p[i] - sent;
      }
      std::ranges::copy(g, grad.span().begin());
      optimizer.step(real.span(), grad.span());
    }
    const StateDict state = optimizer.save();
    EXPECT_EQ(Floats(real.data(), real.data() + kN), x);
    EXPECT_EQ(state.tensors.at("error/w").values, e);
    EXPECT_EQ(state.tensors.at("server_error/w").values, Floats(kN)) << "C(C(p)) is not C(p)";
  });
}

TEST(OneBitAdam, TheServerOfOneWorkerHasNoError) {
  run_world(1, [](Communicator& comm) {
    const Layout layout({{"w", {9001}}});
    Optimizer optimizer(comm, layout,
                        {.method = "onebit-adam", .options = {{"freeze_steps", "3"}}});
    FlatBuffer x(layout.flat_size()), g(layout.flat_size());
    for (int step = 0; step < 20; ++step) {
      std::ranges::copy(gradient_of(0, step, 9001), g.span().begin());
      optimizer.step(x.span(), g.span());
    }
    EXPECT_EQ(optimizer.save().tensors.at("server_error/w").values, Floats(9001));
  });
}

// The counter-example of Karimireddy et al., section 3: f(x) = |x0 + x1| / 2 + |x0 - x1|. Signs of
// its gradient are (+, -) or (-, +), and along them x0 + x1 never changes.
double f(float a, float b) { return std::abs(a + b) / 2 + std::abs(a - b); }
std::pair<float, float> gradient_of_f(float a, float b) {
  const float s = a + b > 0 ? 0.5f : -0.5f, t = a - b > 0 ? 1.0f : -1.0f;
  return {s + t, s - t};
}

TEST(SignSgdErrorFeedback, ConvergesWhereScaledSignsStall) {
  const float lr = 2e-3f;
  float a = 1.0f, b = 1.0f;
  for (int step = 0; step < 1500; ++step) {
    const auto [ga, gb] = gradient_of_f(a, b);
    const float scale = lr * (std::abs(ga) + std::abs(gb)) / 2;
    a -= ga > 0 ? scale : -scale;
    b -= gb > 0 ? scale : -scale;
  }
  EXPECT_GT(f(a, b), 0.99) << "without feedback it should stall";

  for (const int world : {1, 2, 4}) {
    run_world(world, [&](Communicator& comm) {
      const Layout layout({{"x", {2}}});
      Optimizer optimizer(comm, layout, {.method = "signsgd-ef", .groups = {{.lr = lr}}});
      FlatBuffer x(layout.flat_size()), g(layout.flat_size());
      x.span()[0] = x.span()[1] = 1;
      for (int step = 0; step < 1500; ++step) {
        std::tie(g.span()[0], g.span()[1]) = gradient_of_f(x.span()[0], x.span()[1]);
        optimizer.step(x.span(), g.span());
      }
      EXPECT_LT(f(x.span()[0], x.span()[1]), 0.02) << "N = " << world;
    });
  }
}

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

// A coordinate whose gradient was always zero while v was learned.
TEST(OneBitAdam, CoordinatesWithoutVarianceDoNotMove) {
  const Layout layout({{"w", {5000}}});
  run_world(3, [&](Communicator& comm) {
    Optimizer optimizer(comm, layout,
                        {.method = "onebit-adam", .options = {{"freeze_steps", "5"}}});
    FlatBuffer x(layout.flat_size()), g(layout.flat_size());
    testing::fill(layout, x, testing::initial);
    for (int step = 0; step < 50; ++step) {
      std::ranges::copy(gradient_of(comm.rank(), step, 5000), g.span().begin());
      for (std::size_t i = 0; i < 5000; i += 2) g.span()[i] = 0;
      optimizer.step(x.span(), g.span());
    }
    for (std::size_t i = 0; i < 5000; i += 2) {
      ASSERT_EQ(x.span()[i], testing::initial(0, i)) << "coordinate " << i;
      ASSERT_NE(x.span()[i + 1], testing::initial(0, i + 1)) << "coordinate " << i + 1;
    }
  });
}

// Loss of x after a noisy quadratic with curvatures from 1/8 to 1, one minimum for all ranks.
double quadratic_loss_after(const OptimizerOptions& options, int steps) {
  constexpr std::size_t kN = 6000;
  const auto target = [](std::size_t i) { return testing::initial(1, i); };
  const auto curvature = [](std::size_t i) { return std::ldexp(1.0f, -static_cast<int>(i % 4)); };
  double loss = 0;
  run_world(4, [&](Communicator& comm) {
    const Layout layout({{"w", {kN}}});
    Optimizer optimizer(comm, layout, options);
    FlatBuffer x(layout.flat_size()), g(layout.flat_size());
    for (int step = 0; step < steps; ++step) {
      for (std::size_t i = 0; i < kN; ++i) {
        const float noise = testing::gradient(comm.rank(), step, 2, i) / 80;
        g.span()[i] = curvature(i) * (x.span()[i] - target(i)) + noise;
      }
      optimizer.set_group({.lr = *options.groups[0].lr * (1 - static_cast<double>(step) / steps)});
      optimizer.step(x.span(), g.span());
    }
    if (comm.rank() != 0) return;
    for (std::size_t i = 0; i < kN; ++i) {
      loss += 0.5 * curvature(i) * std::pow(x.span()[i] - target(i), 2) / kN;
    }
  });
  return loss;
}

TEST(ErrorFeedbackMethods, ComeAsNearAsTheDenseOnesOnANoisyQuadratic) {
  const double start = quadratic_loss_after({.method = "sgdm", .groups = {{.lr = 0.0}}}, 1);
  const double sgdm = quadratic_loss_after({.method = "sgdm", .groups = {{.lr = 0.002}}}, 2000);
  const double ef = quadratic_loss_after({.method = "signsgd-ef", .groups = {{.lr = 0.02}}}, 2000);
  const double adamw = quadratic_loss_after({.method = "adamw", .groups = {{.lr = 0.01}}}, 600);
  const double onebit = quadratic_loss_after(
      {.method = "onebit-adam", .options = {{"freeze_steps", "120"}}, .groups = {{.lr = 0.01}}},
      600);
  EXPECT_LT(ef, 1.5 * sgdm) << "sgdm " << sgdm;
  EXPECT_LT(onebit, 1.5 * adamw) << "adamw " << adamw;
  EXPECT_LT(1000 * ef, start);
  EXPECT_LT(1000 * onebit, start);
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
      try {
        optimizer.step(x.span(), g.span());
        ADD_FAILURE() << method << " took a sum of Inf";
      } catch (const NonFiniteGradient& e) {
        EXPECT_NE(std::string(e.what()).find("the sum of the ranks' gradients of 'b' overflows"),
                  std::string::npos)
            << e.what();
      }
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
}  // namespace pride::error_feedback_theory_test
