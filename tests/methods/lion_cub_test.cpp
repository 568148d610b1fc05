// Lion Cub: the scalar oracle bit for bit, its limits, cost and refusals.
// SPDX-License-Identifier: Apache-2.0
// Oracle: tests/reference/lion_cub_ref.h, without synchronisation (lion_cub_sync_test.cpp).
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "methods/lion_cub_training.h"
#include "pride/error.h"
#include "pride/registry.h"
#include "reference/lion_cub_ref.h"
#include "support/texts.h"

namespace pride::lion_cub_test {
namespace {

using cub::gradient;
using cub::kTensors;
using cub::Options;
using cub::params_of;
using cub::training;
using reference::CubOracle;
using reference::CubRules;
using testing::Training;

void expect_oracle(int world, const Options& options, const CubRules& rules) {
  const Layout layout(kTensors);
  const Training run = training(world, options);
  const auto ranks = testing::train(layout, run);
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    const CubOracle oracle(rules, world, testing::initial_of(layout, t),
                           layout.tensors()[t].offset);
    ASSERT_EQ(testing::difference(oracle, layout, t, run, ranks), "");
  }
}

CubRules rules_of(const Options& options) {
  CubRules rules;
  rules.seed = 99;
  rules.decay = static_cast<float>(1 - 0.01 * 0.1);
  rules.beta1c = static_cast<float>(1 - 0.9);
  rules.beta2c = static_cast<float>(1 - 0.99);
  for (const auto& [name, value] : options) {
    if (name == "bits") rules.bits = std::stoi(value);
    if (name == "scale") rules.scale = value;
    if (name == "granularity") rules.granularity = value;
    if (name == "tie") rules.tie_zero = value == "zero";
    if (name == "rounding") rules.stochastic = value == "stochastic";
    if (name == "shared") rules.shared = value == "yes";
    if (name == "feedback") rules.feedback = value == "yes";
  }
  return rules;
}

class LionCubOracle : public ::testing::TestWithParam<Options> {};

TEST_P(LionCubOracle, AgreesBitForBit) {
  for (const int world : {1, 2, 3, 4, 5}) {
    for (const char* route : {"sharded", "native"}) {
      Options options = GetParam();
      options["route"] = route;
      SCOPED_TRACE(route);
      expect_oracle(world, options, rules_of(options));
    }
  }
}

std::string name_of(const ::testing::TestParamInfo<Options>& info) {
  std::string name = "case";
  for (const auto& [key, value] : info.param) name += "_" + key + value;
  std::erase_if(
      name, [](char c) { return c != '_' && std::isalnum(static_cast<unsigned char>(c)) == 0; });
  return name;
}

INSTANTIATE_TEST_SUITE_P(Bits, LionCubOracle,
                         ::testing::Values(Options{{"bits", "2"}}, Options{{"bits", "3"}},
                                           Options{{"bits", "4"}}, Options{{"bits", "5"}},
                                           Options{{"bits", "6"}}, Options{{"bits", "7"}},
                                           Options{{"bits", "8"}}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(
    Quantisers, LionCubOracle,
    ::testing::Values(Options{{"scale", "max"}}, Options{{"scale", "l2"}, {"tie", "zero"}},
                      Options{{"granularity", "tensor"}},
                      Options{{"granularity", "tensor"}, {"shared", "yes"}, {"scale", "max"}},
                      Options{
                          {"granularity", "tensor"}, {"shared", "yes"}, {"rounding", "stochastic"}},
                      Options{{"scale", "l0"}},
                      Options{{"scale", "l0"}, {"granularity", "tensor"}, {"shared", "yes"}},
                      Options{{"scale", "l0"}, {"granularity", "tensor"}, {"bits", "8"}},
                      Options{{"scale", "l0"},
                              {"granularity", "tensor"},
                              {"shared", "yes"},
                              {"feedback", "yes"},
                              {"rounding", "stochastic"}},
                      Options{{"rounding", "stochastic"}, {"bits", "2"}},
                      Options{{"feedback", "yes"}, {"bits", "2"}},
                      Options{{"feedback", "yes"}, {"granularity", "tensor"}, {"bits", "3"}}),
    name_of);

// p = 1 without synchronisation is Distributed Lion, of either tie rule.
TEST(LionCub, OfOneBitIsTheMajorityVote) {
  const Layout layout(kTensors);
  for (const char* tie : {"hash", "zero"}) {
    for (const int world : {1, 2, 3, 4, 8}) {
      const auto cub = params_of(layout, training(world, {{"bits", "1"}, {"tie", tie}}));
      Training vote = training(world, {{"tie", tie}});
      vote.options.method = "dlion-vote";
      vote.options.options = {{"tie", tie}};
      EXPECT_EQ(cub, params_of(layout, vote)) << "N=" << world << " tie " << tie;
    }
  }
}

// --- Zeros. -------------------------------------------------------------------------------------

const char* const kScales[] = {"l0", "l1", "l2", "max"};

// A zero tensor has no size: the mean of shared scales is over the others, as without that rank.
TEST(LionCub, SharedScalesLeaveOutRanksWhoseTensorIsZero) {
  const Layout layout({{"w", {30, 20}}});
  for (const char* scale : kScales) {
    Training zero =
        training(3, {{"scale", scale}, {"granularity", "tensor"}, {"shared", "yes"}}, 1);
    zero.unused = nullptr;
    zero.grad = testing::gradient;
    Training without = zero;
    zero.grad = [](int rank, std::int64_t step, std::size_t tensor, std::size_t i) {
      return rank == 1 ? 0.0f : testing::gradient(rank, step, tensor, i);
    };
    without.unused = [](int rank, std::int64_t, std::size_t) { return rank == 1; };
    EXPECT_EQ(params_of(layout, zero), params_of(layout, without)) << scale;
  }
}

TEST(LionCub, EveryScaleReportsNonFiniteGradients) {
  const Layout layout({{"a", {70, 70}}, {"b", {30, 20}}});
  for (const char* scale : kScales) {
    for (const auto& [granularity, shared] :
         {std::pair{"block", "no"}, {"tensor", "yes"}, {"tensor", "no"}}) {
      Training run =
          training(2, {{"scale", scale}, {"granularity", granularity}, {"shared", shared}}, 2);
      run.options.non_finite = NonFinitePolicy::kSkip;
      run.unused = nullptr;
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(), INFINITY, -INFINITY}) {
        run.grad = [bad](int rank, std::int64_t step, std::size_t t, std::size_t i) {
          const bool here = step == 0 && rank == 1 && t == 1 && i == 7;
          return here ? bad : testing::gradient(rank, step, t, i);
        };
        const auto ranks = testing::train(layout, run);
        EXPECT_NE(ranks[0].reports[0].skip_reason.find("'b' on rank 1"), std::string::npos)
            << scale << ", " << granularity << ": " << ranks[0].reports[0].skip_reason;
        EXPECT_FALSE(ranks[0].reports[1].skipped);
        EXPECT_EQ(ranks[0].hash, ranks[1].hash);
      }
    }
  }
}

// --- Cost, state, options. ----------------------------------------------------------------------

TEST(LionCub, CostEqualsCountedBytesInEveryStep) {
  const Layout layout(kTensors);
  const Options cases[] = {
      {{"bits", "1"}, {"sync", "all"}},
      {{"bits", "3"}, {"sync", "vectors,first"}, {"sync_every", "3"}},
      {{"bits", "8"}, {"sync", "all"}, {"sync_format", "5"}},
      {{"sync", "all"}, {"sync_schedule", "exponential"}, {"sync_doubling", "1"}},
      {{"granularity", "tensor"}, {"shared", "yes"}, {"tie", "zero"}},
      {{"route", "native"}, {"bits", "7"}}};
  for (const Options& options : cases) {
    for (const int world : {1, 2, 3, 4, 7}) {
      run_world(world, [&](Communicator& comm) {
        Training run = training(world, options);
        Optimizer optimizer(comm, layout, run.options);
        FlatBuffer params(layout.flat_size()), grads(layout.flat_size());
        testing::fill(layout, grads,
                      [&](std::size_t t, std::size_t i) { return gradient(comm.rank(), 0, t, i); });
        for (std::int64_t step = 0; step < 5; ++step) {
          const Cost cost = optimizer.cost(step);
          const StepReport report = optimizer.step(params.span(), grads.span());
          const bool native = options.contains("route") && world > 1;
          EXPECT_EQ(cost.exact, !native);
          if (native) {
            EXPECT_LE(report.bytes_sent, cost.bytes()) << "N=" << world;
            EXPECT_GE(2 * report.bytes_sent, cost.bytes()) << "N=" << world;
          } else {
            EXPECT_EQ(report.bytes_sent, cost.bytes()) << "N=" << world << " step " << step;
          }
        }
      });
    }
  }
}

TEST(LionCub, TakesTheNativeRouteWhereItIsCheaper) {
  // few coordinates on many ranks: headers outweigh levels
  const auto bytes = [](std::int64_t d, int world, const char* route) {
    const Layout layout({{"w", {d}}});
    return method_cost(
        "lion-cub", layout,
        {.options = {{"route", route}, {"bits", "2"}, {"shared", "no"}, {"sync", "none"}},
         .world = world});
  };
  EXPECT_LT(bytes(1000, 64, "native").bytes(), bytes(1000, 64, "sharded").bytes());
  EXPECT_EQ(bytes(1000, 64, "auto").bytes(), bytes(1000, 64, "native").bytes());
  EXPECT_EQ(bytes(1'000'000, 64, "auto").bytes(), bytes(1'000'000, 64, "sharded").bytes());
  EXPECT_FALSE(bytes(1000, 64, "auto").exact);
}

TEST(LionCub, RefusesOptionsThatMakeNoSense) {
  const Layout layout(kTensors);
  const auto refused = [&](const Options& options) {
    return texts::error_of<InvalidArgument>(
        [&] { method_cost("lion-cub", layout, {.options = options}); });
  };
  EXPECT_NE(refused({{"bits", "9"}}).find("from 1 to 8"), std::string::npos);
  EXPECT_NE(refused({{"bits", "2.5"}}).find("whole number"), std::string::npos);
  EXPECT_NE(refused({{"scale", "l3"}}).find("choose l0, l1, l2 or max"), std::string::npos);
  EXPECT_NE(refused({{"granularity", "block"}}).find("granularity = tensor, or shared"),
            std::string::npos);
  EXPECT_NE(refused({{"sync", "vectors,nothing"}}).find("named by 'nothing'"), std::string::npos);
  EXPECT_NE(refused({{"sync_format", "9"}}).find("choose fp32, bf16"), std::string::npos);
  EXPECT_NE(refused({{"sync_every", "0"}}).find("sync_every"), std::string::npos);
  EXPECT_NE(refused({{"sync_schedule", "linear"}}).find("even or exponential"), std::string::npos);
  for (const auto& [option, value] :
       Options{{"sync_schedule", "exponential"}, {"sync_doubling", "8"}}) {
    EXPECT_EQ(refused({{option, value}}), "");
    EXPECT_NE(refused({{option, value}, {"sync", "none"}}).find(option + " = '" + value),
              std::string::npos);
  }
  EXPECT_NE(refused({{"bits", "1"}, {"feedback", "yes"}}).find("signsgd-ef"), std::string::npos);
  EXPECT_NE(refused({{"route", "ring"}}).find("auto, sharded or native"), std::string::npos);
}

}  // namespace
}  // namespace pride::lion_cub_test
