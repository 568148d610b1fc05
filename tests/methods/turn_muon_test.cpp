// turn-muon: each step votes on some of the coordinates.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "codecs/turn_signs.h"
#include "rules/orthogonalise.h"
#include "support/texts.h"
#include "support/training.h"

namespace pride::turn_muon_test {
namespace {

using testing::Training;

// A tie or a zero would be drawn by the cycle of the turns: three ranks, and no zeros.
float gradient(int rank, std::int64_t step, std::size_t tensor, std::size_t index) {
  const float g = testing::gradient(rank, step, tensor, index);
  return g == 0 ? 0.25F : g;
}

Training run_of(const std::string& method, int turns = 0) {
  Training run{.world = 3, .steps = 5, .grad = gradient};
  run.options = {.method = method, .groups = {{.lr = 0.01}}, .bucket_coords = 256};
  if (turns > 0) run.options.options["turns"] = std::to_string(turns);
  return run;
}

class TurnMuon : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!rules::has_blas()) GTEST_SKIP() << "this build has no CBLAS";
  }
  const Layout layout_{testing::kTensors};
};

TEST_F(TurnMuon, WithOneTurnIsDistributedLionMuon) {
  Training plain = run_of("dlion-muon"), turns = run_of("turn-muon", 1);
  plain.grad = turns.grad = testing::gradient;  // with zeros
  for (Training* run : {&plain, &turns}) {
    run->world = 4;  // and ties
    run->options.groups = {{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.125}};
    run->unused = testing::unused;
  }
  plain.options.options["route"] = "sharded";
  const auto one = testing::train(layout_, plain), other = testing::train(layout_, turns);
  EXPECT_EQ(one[0].hash, other[3].hash);
  EXPECT_EQ(one[0].cost.bytes(), other[0].cost.bytes());
}

// Gradients do not depend on parameters here, so that both methods have the same momenta. Then a
// coordinate moves as dlion-muon's vote of the step in which it has its turn says, and not before.
TEST_F(TurnMuon, MovesACoordinateInItsTurnByTheVoteOfThatStep) {
  constexpr int kTurns = 4;
  const Turns turns(kTurns);
  std::vector<std::vector<float>> plain, taken;  // after so many steps
  for (int steps = 0; steps <= 2 * kTurns; ++steps) {
    for (auto* all : {&plain, &taken}) {
      Training run = all == &plain ? run_of("dlion-muon") : run_of("turn-muon", kTurns);
      run.options.groups = {{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.9}};
      run.steps = steps;
      all->push_back(testing::train(layout_, run)[0].params);
    }
  }
  const float rate = 0.01F * kTurns;
  for (int step = 0; step < 2 * kTurns; ++step) {
    const auto s = static_cast<std::size_t>(step);
    for (const TensorSlot& slot : layout_.tensors()) {
      for (std::size_t i = slot.offset; i < slot.offset + slot.n; ++i) {
        const bool turn = (turns.mask(i / 64, step) >> (i % 64)) & 1;
        const float vote = plain[s + 1][i] < plain[s][i] ? 1 : -1;
        const float want = turn ? taken[s][i] - rate * vote : taken[s][i];
        ASSERT_EQ(taken[s + 1][i], want) << "coordinate " << i << ", step " << step;
      }
    }
  }
}

// A rank with most of the votes decides.
TEST_F(TurnMuon, VotesHaveWeights) {
  Training alone = run_of("turn-muon", 2), weighted = run_of("turn-muon", 2);
  alone.world = 1;
  weighted.world = 2;
  weighted.weights = {3, 2};
  EXPECT_EQ(testing::train(layout_, weighted)[1].hash, testing::train(layout_, alone)[0].hash);
}

TEST_F(TurnMuon, SendsItsCostAPartOfAVote) {
  const Layout layout({{"w", {4096, 4096}}});
  const CostQuery query{.world = 16, .bucket_coords = 1 << 24};  // headers do not count then
  const Cost vote = method_cost("dlion-muon", layout, query);
  const Cost turn = method_cost("turn-muon", layout, query);
  const double bits = 8.0 * static_cast<double>(turn.bytes()) / (1 << 24);
  EXPECT_LT(bits, 0.126);
  EXPECT_GT(bits, 2.0 * 15 / 16 / 16);
  EXPECT_LT(15.5 * static_cast<double>(turn.bytes()), static_cast<double>(vote.bytes()));
  EXPECT_DOUBLE_EQ(method_info("turn-muon", 16).bits_up, 1.0 / 16);
  EXPECT_DOUBLE_EQ(method_info("turn-muon", 16, {{"turns", "64"}}).bits_down, 1.0 / 64);
  for (const auto& rank : testing::train(layout_, run_of("turn-muon"))) {
    EXPECT_EQ(rank.reports.back().bytes_sent, rank.last_cost.bytes());
  }
}

TEST_F(TurnMuon, NamesItselfAndTheOptionThatItRefuses) {
  using Option = std::pair<const char*, const char*>;
  for (const auto& [name, value] : {Option{"turns", "0"}, Option{"turns", "3"},
                                    Option{"turns", "128"}, Option{"iterations", "50"}}) {
    texts::expect_error<InvalidArgument>(
        [&] {
          state_of("turn-muon", Layout({{"w", {1}}}), {{name, value}});
        },
        {std::string("turn-muon: option ") + name});
  }
}

}  // namespace
}  // namespace pride::turn_muon_test
