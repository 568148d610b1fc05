// Virtual workers: refusals and their texts; clipping and nodes. The oracle of bits is a run of
// ranks on threads.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "pride/error.h"
#include "pride/virtual_workers.h"
#include "support/texts.h"
#include "virtual_run.h"

namespace pride::virtual_errors_test {
namespace {

using testing::kTensors;
using testing::Training;
using testing::VirtualWorld;

const Layout kLayout(kTensors);

class VirtualErrors : public ::testing::Test {
 protected:
  std::string refused(const std::function<void()>& body) {
    return texts::error_of<InvalidArgument>(body);
  }

  FlatBuffer x_{kLayout.flat_size()}, g_{kLayout.flat_size()};
};

TEST_F(VirtualErrors, NameTheWorkerThatIsMissingOrCameTwice) {
  VirtualWorkers all(kLayout, {}, {3});
  all.hand_over(0, x_.span(), g_.span());
  all.hand_over(2, x_.span(), g_.span());
  EXPECT_EQ(refused([&] { all.hand_over(2, x_.span(), g_.span()); }),
            "optimizer: virtual worker 2 has handed over its gradients in this step already");
  EXPECT_EQ(refused([&] { all.step(x_.span()); }),
            "optimizer: virtual worker 1 of 3 has not handed over its gradients in step 1");
  EXPECT_EQ(refused([&] { all.hand_over(3, x_.span(), g_.span()); }),
            "optimizer: hand_over() of virtual worker 3, there are 3");
  EXPECT_EQ(refused([&] { all.save(1); }), "optimizer: save() in the middle of a step");
  all.hand_over(1, x_.span(), g_.span());  // none of these has cost the step
  EXPECT_EQ(all.step(x_.span()).step, 0);
  EXPECT_EQ(all.steps_done(), 1);
  EXPECT_NE(refused([&] { all.step(x_.span()); }).find("worker 0 of 3"), std::string::npos);
}

TEST_F(VirtualErrors, NameWhatDoesNotGoWithThem) {
  VirtualWorkers all(kLayout, {}, {3});
  EXPECT_NE(refused([&] { all.load(all.save(0)); }).find("all 3 virtual workers"),
            std::string::npos);
  for (const int n : {-1, 0, 1025}) {
    EXPECT_EQ(refused([&] { VirtualWorkers(kLayout, {}, {n}); }),
              concat("optimizer: ", n, " virtual workers, must be from 1 to 1024"));
  }
  EXPECT_EQ(refused([&] {
              VirtualWorkers(kLayout, {}, {3, {1, 2}});
            }),
            "optimizer: 2 weights for 3 virtual workers");
  const auto sum = [](std::span<double>) {};
  EXPECT_NE(refused([&] {
              VirtualWorkers(kLayout, {.model_parallel_sum = sum}, {2});
            }).find("model_parallel_sum is not supported with virtual workers"),
            std::string::npos);
}

TEST_F(VirtualErrors, NonFiniteGradientsRaiseInTheWordsOfRanks) {
  for (const std::string method : {"dlion-vote", "adamw", "local-vote:h=4"}) {
    Training run{.world = 3, .steps = 1};
    testing::set_method(run.options, method);
    run.grad = [](int rank, std::int64_t step, std::size_t tensor, std::size_t index) {
      const bool bad = rank == 1 && tensor == 1 && index == 1234;
      return bad ? std::numeric_limits<float>::quiet_NaN()
                 : testing::gradient(rank, step, tensor, index);
    };
    testing::fill(kLayout, x_, testing::initial);
    const std::vector<float> before = testing::copy_of(x_);
    VirtualWorld world(kLayout, run, x_);
    EXPECT_EQ(texts::error_of<NonFiniteGradient>([&] { world.step(0); }),
              "step 1: NaN or Inf in the gradient of 'w1' on rank 1")
        << method;
    EXPECT_TRUE(testing::same_bits(testing::copy_of(x_), before)) << method;
    EXPECT_NE(refused([&] { world.step(0); }).find("no further steps"), std::string::npos);
  }
}

// All ranks name the lowest rank, whatever the order in which frames are looked at.
TEST_F(VirtualErrors, OfSeveralNonFiniteGradientsTheLowestRanksIsNamed) {
  Training run{.world = 3, .steps = 1};
  run.grad = [](int rank, std::int64_t step, std::size_t tensor, std::size_t index) {
    const bool bad = index == 7 && tensor + static_cast<std::size_t>(rank) == 2;
    return bad ? std::numeric_limits<float>::infinity()
               : testing::gradient(rank, step, tensor, index);
  };
  testing::fill(kLayout, x_, testing::initial);
  VirtualWorld world(kLayout, run, x_);
  const std::string of_virtual = texts::error_of<NonFiniteGradient>([&] { world.step(0); });
  const std::string of_ranks =
      texts::error_of<NonFiniteGradient>([&] { testing::train_ranks(kLayout, run); });
  EXPECT_EQ(of_virtual, of_ranks);
  EXPECT_TRUE(of_virtual.ends_with("on rank 0")) << of_virtual;
}

TEST(VirtualClipping, ScalesTheMeanAsRanksDo) {
  for (const std::string method : {"adamw", "lion"}) {
    Training run{.world = 3, .steps = 4};
    run.options = {.method = method, .clip_global_norm = 0.5};
    const auto ranks = testing::train_ranks(kLayout, run);
    expect_same(testing::train_virtual(kLayout, run), ranks, method);
    FlatBuffer x(kLayout.flat_size());
    testing::fill(kLayout, x, testing::initial);
    VirtualWorld world(kLayout, run, x);
    EXPECT_GT(ranks.workers[0].reports[0].grad_norm.value(), 0.5);
    EXPECT_EQ(world.step(0).grad_norm, ranks.workers[0].reports[0].grad_norm) << method;
  }
}

TEST(VirtualWeights, CountAsVotesOfRanksDo) {
  for (const std::string method : {"dlion-vote", "dlion-avg"}) {
    Training run{.world = 3, .steps = 4, .options = {.method = method}, .weights = {1, 5, 2}};
    const auto ranks = testing::train_ranks(kLayout, run);
    expect_same(testing::train_virtual(kLayout, run), ranks, method);
    run.weights.clear();
    EXPECT_FALSE(testing::same_bits(testing::train_ranks(kLayout, run).common, ranks.common));
  }
}

// The hierarchical route: nodes are a matter of bytes alone.
TEST(VirtualNodes, CountTheBytesOfNodes) {
  Training run{.world = 4, .steps = 3};
  const auto flat = testing::train_ranks(kLayout, run);
  run.options.nodes = Nodes::of_size(4, 2);
  const auto ranks = testing::train_ranks(kLayout, run);
  ASSERT_NE(ranks.workers[0].reports[0].bytes_sent, flat.workers[0].reports[0].bytes_sent);
  expect_same(testing::train_virtual(kLayout, run), ranks, "two nodes of two");
  run.weights = {1, 7, 2, 3};
  expect_same(testing::train_virtual(kLayout, run), testing::train_ranks(kLayout, run),
              "with weights");
}

}  // namespace
}  // namespace pride::virtual_errors_test
