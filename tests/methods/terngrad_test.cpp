// terngrad, real exchange included, against the scalar oracle: bit for bit; and that it is
// unbiased.
// SPDX-License-Identifier: Apache-2.0
// Oracle: tests/reference/terngrad_ref.h, loops over ranks without frames.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "pride/error.h"
#include "pride/registry.h"
#include "reference/terngrad_ref.h"
#include "support/training.h"

namespace pride::terngrad_test {
namespace {

using reference::Hyper;
using reference::TernGradOracle;
using testing::Training;

const std::vector<TensorSpec> kTensors = {{"embedding", {40, 16}},
                                          {"weight", {33, 7}},
                                          {"bias", {33}, 1},
                                          {"scale", {}, 1},
                                          {"head", {1300, 5}}};

// Rank 1 never has "bias"; no rank has "scale" at step 1; "head" is missing here and there.
bool unused(int rank, std::int64_t step, std::size_t tensor) {
  return (tensor == 2 && rank == 1) || (tensor == 3 && step == 1) ||
         (tensor == 4 && (rank + step) % 3 == 2);
}

TEST(TernGrad, AgreesWithTheOracleBitForBit) {
  const Layout layout(kTensors);
  constexpr std::uint64_t kSeed = 0x1234567890ABCDEFu;
  for (const int world : {1, 2, 3, 4, 5, 8}) {
    for (const auto& [clip, nesterov] : {std::pair{2.5, "no"}, {0.0, "no"}, {0.7, "yes"}}) {
      Training run{.world = world, .steps = 5};
      run.options.method = "terngrad";
      run.options.options = {{"clip", concat(clip)}, {"nesterov", nesterov}};
      run.options.groups = {{.lr = 0.01, .weight_decay = 0.1}, {.lr = 0.003, .weight_decay = 0.0}};
      run.options.seed = kSeed;
      run.options.bucket_coords = 256;
      run.unused = unused;
      const auto ranks = testing::train(layout, run);
      for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
        const TensorSlot& slot = layout.tensors()[t];
        const bool group1 = slot.spec.group == 1;
        const Hyper hyper{.lr = group1 ? 0.003 : 0.01,
                          .weight_decay = group1 ? 0.0 : 0.1,
                          .nesterov = std::string(nesterov) == "yes"};
        const TernGradOracle oracle(world, testing::initial_of(layout, t), hyper, slot.offset, clip,
                                    kSeed);
        ASSERT_EQ(testing::difference(oracle, layout, t, run, ranks), "") << "clip " << clip;
      }
    }
  }
}

// E[t] = g. Steps of plain SGD with lr 1 on a constant gradient: after T steps x = -sum of the
// decoded gradients. Each coordinate's mean has a variance of at most s|g|/(N T); 1000 coordinates
// are outside 5.5 of its deviations once in 26,000 runs by chance, and the seed is fixed.
TEST(TernGrad, IsUnbiased) {
  constexpr std::size_t kCoords = 1000;
  constexpr int kSteps = 400, kWorld = 4;
  const Layout layout({{"w", {kCoords}}});
  Training run{.world = kWorld, .steps = kSteps};
  run.options.method = "terngrad";
  run.options.options = {{"clip", "0"}};
  run.options.groups = {{.lr = 1.0, .beta1 = 0.0}};
  run.options.seed = 17;
  run.grad = [](int rank, std::int64_t, std::size_t t, std::size_t i) {
    return testing::gradient(rank, 0, t, i);
  };
  const auto ranks = testing::train(layout, run);
  float scale = 0;
  for (int r = 0; r < kWorld; ++r) {
    for (std::size_t i = 0; i < kCoords; ++i) {
      scale = std::max(scale, std::abs(testing::gradient(r, 0, 0, i)));
    }
  }
  double total = 0;
  for (std::size_t i = 0; i < kCoords; ++i) {
    double mean = 0, variance = 0;
    for (int r = 0; r < kWorld; ++r) {
      const double g = static_cast<double>(testing::gradient(r, 0, 0, i)) / kWorld;
      const double s = static_cast<double>(scale) / kWorld;
      mean += g;
      variance += (s * std::abs(g) - g * g) / kSteps;
    }
    const double moved = (testing::initial(0, i) - ranks[0].params[i]) / kSteps;
    const double deviation = std::sqrt(variance) + 1e-5;  // and the rounding of x
    ASSERT_NEAR(moved, mean, 5.5 * deviation) << "coordinate " << i;
    total += (moved - mean) / deviation;
  }
  // the sum over coordinates would show a common drift that no single one does
  EXPECT_NEAR(total / std::sqrt(kCoords), 0, 5);
}

// A dropped step leaves momentum as it was, and other ranks' scales do not suffer from a NaN.
TEST(TernGrad, ADroppedStepLosesNothing) {
  const Layout layout({{"a", {100}}, {"b", {50}}});
  run_world(2, [&](Communicator& comm) {
    Optimizer optimizer(comm, layout, {.method = "terngrad", .non_finite = NonFinitePolicy::kSkip});
    FlatBuffer x(layout.flat_size()), g(layout.flat_size());
    const auto step = [&](float value) {
      for (std::size_t i = 0; i < 100; ++i) g.span()[i] = value;
      return optimizer.step(x.span(), g.span());
    };
    step(1.0f);
    const auto before = optimizer.save().tensors;
    const std::vector<float> params(x.span().begin(), x.span().end());
    const auto report = step(comm.rank() == 1 ? std::numeric_limits<float>::quiet_NaN() : 1.0f);
    EXPECT_TRUE(report.skipped);
    EXPECT_NE(report.skip_reason.find("'a' on rank 1"), std::string::npos) << report.skip_reason;
    EXPECT_EQ(optimizer.save().tensors.at("m/a").values, before.at("m/a").values);
    EXPECT_TRUE(std::ranges::equal(x.span(), params));
  });
}

TEST(TernGrad, RefusesOptionsThatMakeNoSense) {
  const Layout layout({{"w", {10}}});
  for (const char* clip : {"-1", "x", ""}) {
    run_world(1, [&](Communicator& comm) {
      EXPECT_THROW(Optimizer(comm, layout, {.method = "terngrad", .options = {{"clip", clip}}}),
                   InvalidArgument);
    });
  }
}

}  // namespace
}  // namespace pride::terngrad_test
