// signs = stochastic and result = stochastic: against the scalar oracle bit for bit, over all
// routes; and that they are unbiased.
// SPDX-License-Identifier: Apache-2.0
// Oracle: tests/reference/methods_ref.h with tests/reference/stochastic_signs_ref.h, loops over
// ranks without frames; of the expectation: the formulas of the paper.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "pride/error.h"
#include "pride/registry.h"
#include "reference/methods_ref.h"
#include "support/training.h"

namespace pride::stochastic_signs_test {
namespace {

using testing::kTensors;
using testing::Training;
using testing::unused;
using Options = std::map<std::string, std::string>;

constexpr std::uint64_t kSeed = 0xABCDEF0123456789u;

const Options kSigns = {{"signs", "stochastic"}}, kResult = {{"result", "stochastic"}},
              kBoth = {{"signs", "stochastic"}, {"result", "stochastic"}};

struct Case {
  std::string method;
  Options options;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.method; }

const std::vector<Case> kCases = {{"dlion-vote", kSigns}, {"dlion-vote", kResult},
                                  {"dlion-vote", kBoth},  {"dlion-avg", kSigns},
                                  {"signum-vote", kBoth}, {"signum-avg", kSigns}};

class Stochastic : public ::testing::TestWithParam<Case> {
 protected:
  Training run(int world, const std::string& route = "auto") const {
    Training run{.world = world, .steps = 4};
    run.options.method = GetParam().method;
    run.options.options = GetParam().options;
    run.options.options["route"] = route;
    run.options.groups = {{.lr = 0.01, .weight_decay = 0.1}};
    run.options.seed = kSeed;
    run.options.bucket_coords = 256;
    run.unused = unused;
    return run;
  }
};

void expect_oracle(const Training& run) {
  const Layout layout(kTensors);
  const auto ranks = testing::train(layout, run);
  const std::vector<std::int64_t> weights(run.weights.begin(), run.weights.end());
  const auto stochastic = [&](const char* option) {
    const auto found = run.options.options.find(option);
    return found != run.options.options.end() && found->second == "stochastic";
  };
  const reference::Hyper hyper{.beta1 = run.options.method.starts_with("signum") ? 0.99 : 0.9,
                               .weight_decay = 0.1,
                               .stochastic_signs = stochastic("signs"),
                               .stochastic_result = stochastic("result")};
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    const reference::Oracle oracle(run.options.method, run.world, testing::initial_of(layout, t),
                                   hyper, layout.tensors()[t].offset, false, kSeed, weights);
    ASSERT_EQ(testing::difference(oracle, layout, t, run, ranks), "");
  }
}

TEST_P(Stochastic, AgreesWithTheOracleBitForBit) {
  for (const int world : {1, 2, 3, 4, 5, 8}) {
    for (const char* route : {"sharded", "one-shot"}) expect_oracle(run(world, route));
  }
}

TEST_P(Stochastic, CountsWeightsAsTheOracleDoes) {
  for (const std::vector<int>& weights :
       std::vector<std::vector<int>>{{2, 1}, {1, 7, 3}, {1, 60000, 3, 5000, 2}}) {
    Training weighted = run(static_cast<int>(weights.size()));
    weighted.weights = weights;
    expect_oracle(weighted);
  }
}

TEST_P(Stochastic, NamesTheRankWithANaN) {
  for (const std::string& text : testing::errors_with_nan(Layout(kTensors), run(3), {2})) {
    EXPECT_NE(text.find("'w1' on rank 2"), std::string::npos) << "'" << text << "'";
  }
}

INSTANTIATE_TEST_SUITE_P(All, Stochastic, ::testing::ValuesIn(kCases), [](const auto& info) {
  std::string name = info.param.method;
  for (const auto& [option, value] : info.param.options) name += "_" + option;
  return testing::test_name(name);
});

// --- Without bias. -------------------------------------------------------------------------------

// Steps of lr 1 with beta1 = 0, so that u = g, which is constant: after T steps x has moved by
// minus the sum of the steps' directions. Returns the mean direction of each coordinate.
std::vector<double> mean_directions(Training run, std::size_t n, int steps) {
  run.steps = steps;
  run.options.groups = {{.lr = 1.0, .beta1 = 0.0}};
  run.options.seed = 17;
  const auto ranks = testing::train(Layout({{"w", {static_cast<std::int64_t>(n)}}}), run);
  std::vector<double> moved(n);
  for (std::size_t i = 0; i < n; ++i) {
    moved[i] = (static_cast<double>(testing::initial(0, i)) - ranks[0].params[i]) / steps;
  }
  return moved;
}

float constant_gradient(int rank, std::int64_t, std::size_t t, std::size_t i) {
  return testing::gradient(rank, 0, t, i);
}

// E = mean of u_i / R_i, and of exact signs the mean of signs. 1000 coordinates are outside 5.5
// deviations once in 26,000 runs by chance, and the seed is fixed.
TEST(StochasticSigns, HaveTheMeanOfTheRanksAsTheirExpectation) {
  constexpr std::size_t kCoords = 1000;
  constexpr int kSteps = 400, kWorld = 4;
  for (const Case& c :
       std::vector<Case>{{"dlion-vote", kBoth}, {"dlion-vote", kResult}, {"dlion-avg", kSigns}}) {
    Training run{.world = kWorld};
    run.options.method = c.method;
    run.options.options = c.options;
    // no zeros: their exact signs are drawn, too
    run.grad = [](int rank, std::int64_t step, std::size_t t, std::size_t i) {
      const float g = constant_gradient(rank, step, t, i);
      return g == 0 ? 0.25f : g;
    };
    const bool signs = c.options.contains("signs"), vote = c.method == "dlion-vote";
    double scale[kWorld] = {};
    for (int r = 0; r < kWorld; ++r) {
      for (std::size_t i = 0; i < kCoords; ++i) {
        scale[r] = std::max(scale[r], std::abs(double{run.grad(r, 0, 0, i)}));
      }
    }
    const auto moved = mean_directions(run, kCoords, kSteps);
    double total = 0;
    for (std::size_t i = 0; i < kCoords; ++i) {
      double mean = 0, variance = 0;
      for (int r = 0; r < kWorld; ++r) {
        const double u = run.grad(r, 0, 0, i);
        const double each = signs ? u / scale[r] : std::copysign(1.0, u);
        mean += each / kWorld;
        variance += (1 - each * each) / (kWorld * kWorld);
      }
      if (vote) variance = 1 - mean * mean;
      const double deviation = std::sqrt(variance / kSteps) + 1e-4;  // and the rounding of x
      ASSERT_NEAR(moved[i], mean, 5.5 * deviation) << c.method << " coordinate " << i;
      total += (moved[i] - mean) / deviation;
    }
    // the sum over coordinates would show a common drift that no single one does
    EXPECT_NEAR(total / std::sqrt(kCoords), 0, 5) << c.method;
  }
}

// --- Options and states. -------------------------------------------------------------------------

std::string error_of(const std::string& method, const Options& options) {
  return testing::errors_of<InvalidArgument>(1, [&](Communicator& comm) {
    const Optimizer optimizer(comm, Layout({{"w", {64}}}), {.method = method, .options = options});
  })[0];
}

TEST(StochasticSigns, RefuseOptionsThatMakeNoSense) {
  EXPECT_NE(error_of("dlion-vote", {{"signs", "random"}}).find("choose exact or stochastic"),
            std::string::npos);
  EXPECT_NE(error_of("dlion-vote", {{"result", "mean"}}).find("choose majority or stochastic"),
            std::string::npos);
  EXPECT_NE(
      error_of("dlion-vote", {{"result", "stochastic"}, {"tie", "zero"}}).find("draws a sign"),
      std::string::npos);
  EXPECT_EQ(error_of("dlion-vote", {{"signs", "stochastic"}, {"tie", "zero"}}), "");
  EXPECT_NE(error_of("dlion-avg", kResult).find("no option 'result'"), std::string::npos);
  EXPECT_NE(error_of("lion-cub", kSigns).find("no option 'signs'"), std::string::npos);
}

}  // namespace
}  // namespace pride::stochastic_signs_test
