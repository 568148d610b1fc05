// Lion Cub: its measurements on samples, and the choice of lion-cub-auto from them.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "pride/error.h"
#include "pride/registry.h"
#include "support/texts.h"
#include "support/training.h"

namespace pride::lion_cub_auto_test {
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

// --- Within a budget. ---------------------------------------------------------------------------

Training auto_training(int world, const std::string& budget) {
  Training run{.world = world, .steps = 24};
  run.options.method = "lion-cub-auto";
  run.options.options = {
      {"budget_bits", budget}, {"measure_steps", "16"}, {"sync_every", "4"}, {"probe_every", "0"}};
  return run;
}

TEST(LionCubAuto, ChoosesAlikeOnAllRanksAndKeepsItsBudget) {
  const Layout layout({{"a", {300, 100}}, {"b", {3000}}, {"c", {200, 100}}});
  const double d = static_cast<double>(layout.n_coords());
  for (const int world : {2, 4}) {
    for (const char* budget : {"2.5", "4", "8", "30"}) {
      const Training run = auto_training(world, budget);
      const auto ranks = testing::train(layout, run), again = testing::train(layout, run);
      SCOPED_TRACE(concat("N=", world, " budget ", budget, ": ", ranks[0].reports[15].note));
      double bytes = 0;
      for (std::size_t r = 0; r < ranks.size(); ++r) {
        EXPECT_EQ(ranks[r].hash, again[0].hash);
        EXPECT_NE(ranks[r].reports[15].note, "");
        EXPECT_EQ(ranks[r].reports[15].note, ranks[0].reports[15].note);
        EXPECT_EQ(ranks[r].reports[16].note, "");
        // whole rounds of synchronisation after the choice
        for (std::size_t step = 16; step < 24; ++step) {
          bytes += static_cast<double>(ranks[r].reports[step].bytes_sent);
        }
      }
      const double bits = 8 * bytes / (8 * d * world);  // over 8 steps
      EXPECT_LE(bits, std::stod(budget));
      EXPECT_EQ(ranks[0].reports[15].note, again[0].reports[15].note);
    }
  }
}

// Small buckets have more frames, and the choice accounts for them, and for the measuring steps'
// samples.
TEST(LionCubAuto, KeepsItsBudgetInSmallBucketsAndWhileItMeasures) {
  const Layout layout({{"a", {300, 100}}, {"b", {3000}}, {"c", {200, 100}}});
  const double d = static_cast<double>(layout.n_coords());
  Training run = auto_training(4, "6");
  run.options.bucket_coords = 4096;
  const auto ranks = testing::train(layout, run);
  double measuring = 0, after = 0;
  for (const auto& rank : ranks) {
    for (const StepReport& report : rank.reports) {
      (report.step < 16 ? measuring : after) += 8 * static_cast<double>(report.bytes_sent);
    }
  }
  EXPECT_LE(measuring / (16 * 4 * d), 6);
  EXPECT_LE(after / (8 * 4 * d), 6);
  EXPECT_GE(after / (8 * 4 * d), 3) << "the budget is not used";
}

// The choice is due after step 15. That step is skipped, so the choice is made a step later.
TEST(LionCubAuto, ChoosesAStepLaterIfTheLastMeasuringStepIsSkipped) {
  const Layout layout({{"a", {300, 100}}, {"b", {3000}}});
  Training run = auto_training(2, "8");
  run.options.non_finite = NonFinitePolicy::kSkip;
  run.grad = [](int rank, std::int64_t step, std::size_t t, std::size_t i) {
    const bool bad = step == 15 && rank == 1 && t == 1 && i == 7;
    return bad ? std::numeric_limits<float>::quiet_NaN() : testing::gradient(rank, step, t, i);
  };
  const auto ranks = testing::train(layout, run);
  EXPECT_TRUE(ranks[0].reports[15].skipped);
  EXPECT_EQ(ranks[0].reports[15].note, "");
  EXPECT_NE(ranks[0].reports[16].note, "");
  EXPECT_EQ(ranks[0].reports[0].bytes_sent, ranks[0].reports[16].bytes_sent) << "the same plan";
  EXPECT_EQ(ranks[0].hash, ranks[1].hash);
}

// From the choice on; longer intervals send less.
TEST(LionCubAuto, KeepsItsBudgetWithTheExponentialSchedule) {
  const Layout layout({{"a", {300, 100}}, {"b", {3000}}, {"c", {200, 100}}});
  const double d = static_cast<double>(layout.n_coords());
  Training run = auto_training(4, "8");
  run.options.options["sync_schedule"] = "exponential";
  run.options.options["sync_doubling"] = "2";
  run.options.options["sync_until"] = "30";
  run.steps = 40;
  const auto ranks = testing::train(layout, run);
  std::vector<double> bits(40);
  for (const auto& rank : ranks) {
    EXPECT_EQ(rank.hash, ranks[0].hash);
    for (std::size_t step = 0; step < 40; ++step) {
      EXPECT_EQ(rank.reports[step].bytes_sent, rank.costs[step].bytes()) << step;
      bits[step] += 8 * static_cast<double>(rank.reports[step].bytes_sent) / (4 * d);
    }
  }
  // intervals of 8 and 11 steps begin at steps 15 and 23; step 30 begins to average none
  const double first = std::accumulate(bits.begin() + 16, bits.begin() + 23, 0.0) / 7;
  const double second = std::accumulate(bits.begin() + 23, bits.begin() + 30, 0.0) / 7;
  const std::string& note = ranks[0].reports[15].note;  // "bits=3 sync=all: 4.76 of 8 bits ..."
  const double said = std::stod(note.substr(note.find(": ") + 2));
  EXPECT_LE(said, 8);
  EXPECT_NEAR(first, said, 0.05) << note;
  EXPECT_LT(second, first);
  EXPECT_LT(bits[30], second);
}

TEST(LionCubAuto, RefusesSynchronisationThatEndsBeforeItsChoice) {
  const Layout layout({{"w", {100'000}}});
  const auto cost = [&](const char* until) {
    return method_cost("lion-cub-auto", layout, {.options = {{"sync_until", until}}, .world = 4});
  };
  EXPECT_THROW(cost("64"), InvalidArgument);
  EXPECT_NO_THROW(cost("65"));
}

TEST(LionCubAuto, RefusesABudgetBelowTheVote) {
  const Layout layout({{"w", {100'000}}});
  texts::expect_error<InvalidArgument>(
      [&] {
        method_cost("lion-cub-auto", layout, {.options = {{"budget_bits", "1.4"}}, .world = 4});
      },
      {"sends 1.5"});
}

TEST(LionCubAuto, ResumesBeforeAndAfterItsChoice) {
  const Layout layout({{"a", {300, 20}}, {"b", {3000}}});
  for (const int cut : {10, 13, 18}) {
    run_world(2, [&](Communicator& comm) {
      const Training run = auto_training(2, "8");
      FlatBuffer params(layout.flat_size()), grads(layout.flat_size()), halfway(layout.flat_size());
      const auto steps = [&](Optimizer& optimizer, FlatBuffer& x, int from, int to) {
        for (int step = from; step < to; ++step) {
          testing::fill(layout, grads, [&](std::size_t t, std::size_t i) {
            return testing::gradient(comm.rank(), step, t, i);
          });
          optimizer.step(x.span(), grads.span());
        }
      };
      Optimizer whole(comm, layout, run.options), part(comm, layout, run.options);
      steps(whole, params, 0, cut);
      const StateDict state = whole.save();
      std::copy(params.span().begin(), params.span().end(), halfway.span().begin());
      steps(whole, params, cut, 24);
      part.load(state);
      steps(part, halfway, cut, 24);
      EXPECT_EQ(param_hash(layout, params.span()), param_hash(layout, halfway.span())) << cut;
      StateDict damaged = state;
      damaged.scalars["method.choice"] = "1 4 x";
      EXPECT_THROW(part.load(damaged), InvalidArgument);
    });
  }
}

}  // namespace
}  // namespace pride::lion_cub_auto_test
