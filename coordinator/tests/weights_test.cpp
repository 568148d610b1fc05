// Learned weights. Oracles: agreement counted sign by sign; the share of right signs in votes of
// honest workers that are right with a known probability.
// SPDX-License-Identifier: Apache-2.0
#include "coord/weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "coord/options.h"
#include "pride/random_bits.h"

namespace pride::coord::test {
namespace {

using Ballots = std::vector<Serving::Signs>;
constexpr std::size_t kWords = 64;

Serving::Signs signs_of(const std::function<bool(std::size_t)>& sign, std::uint64_t mask = ~0ULL) {
  Serving::Signs signs;
  for (std::size_t w = 0; w < kWords; ++w) {
    std::uint64_t word = 0;
    for (std::size_t bit = 0; bit < 64; ++bit) {
      word |= std::uint64_t{sign(64 * w + bit)} << bit;
    }
    signs.words.push_back(word & mask);
    signs.mask.push_back(mask);
  }
  return signs;
}

TEST(Agreements, AreWithTheMedianOther) {
  const auto plus = [](std::size_t) { return true; };
  const Ballots ballots = {signs_of(plus), signs_of(plus),
                           signs_of([](std::size_t i) { return i % 4 == 0; }),
                           signs_of([](std::size_t i) { return i % 2 == 0; })};
  const auto found = agreements(ballots);
  EXPECT_EQ(found[0], 0.5);   // of 1, 1/4, 1/2
  EXPECT_EQ(found[2], 0.25);  // of 1/4, 1/4, 3/4
  EXPECT_EQ(found[3], 0.5);   // of 1/2, 1/2, 3/4
  EXPECT_FALSE(agreements(std::span(ballots).first(1))[0]);
}

TEST(Agreements, LeaveOutCoordinatesThatAWorkerDoesNotUse) {
  const auto plus = [](std::size_t) { return true; };
  const Ballots ballots = {signs_of(plus, 0), signs_of(plus, 0xFF),
                           signs_of([](std::size_t i) { return i % 64 >= 8; })};
  const auto found = agreements(ballots);
  EXPECT_FALSE(found[0]);
  EXPECT_EQ(found[1], 0.0);
}

TEST(LearnedWeights, AreInProportionToLogOddsUpToTheMedianWorkers) {
  LearnedWeights learned(100);
  const std::vector<int> numbers = {0, 1, 2, 3};
  EXPECT_EQ(learned.weights(numbers), (std::vector<int>{1, 1, 1, 1}));
  // the median worker is right with p = 3/4, c = 1/2: products of 0.8/2, 0.5/2, 0.2/2 and below 0
  const std::vector<int> five = {0, 1, 2, 3, 4};
  learned.learn(0, 0.5 + 0.5 * 0.8 * 0.5);
  learned.learn(1, 0.5 + 0.5 * 0.5 * 0.5);
  learned.learn(2, 0.5 + 0.5 * 0.2 * 0.5);
  learned.learn(3, 0.4);
  const auto weights = learned.weights(five);
  EXPECT_EQ(weights[0], 100);  // not ln 9: chance may have put it there
  EXPECT_EQ(weights[1], 100);  // ln 3
  EXPECT_EQ(weights[2], 37);   // ln 1.5
  EXPECT_EQ(weights[3], 0);
  EXPECT_EQ(weights[4], 59);  // nothing known: the mean of the others
}

// Agreement that varies by more than it is, and stays alike for ten rounds, as momenta make it
// (measured in training: 0.50 to 0.58, round by round).
TEST(LearnedWeights, LeaveWorkersThatAreAlikeNearlyAllTheirVotes) {
  constexpr int kWorkers = 8;
  LearnedWeights learned(LearnedWeights::kFew);
  std::vector<int> numbers(kWorkers);
  std::iota(numbers.begin(), numbers.end(), 0);
  double least = kWorkers;  // votes that would weigh as much, in a mean of signs that are noise
  for (int round = 0; round < 400; ++round) {
    for (int v = 0; v < kWorkers; ++v) {
      const std::uint64_t bits = mix64(static_cast<std::uint64_t>(round / 10), v) >> 11;
      learned.learn(v, 0.53 + 0.04 * (2 * static_cast<double>(bits) * 0x1p-53 - 1));
    }
    double sum = 0, squares = 0;
    for (const int w : learned.weights(numbers)) {
      sum += w;
      squares += static_cast<double>(w) * w;
    }
    if (round >= 100) least = std::min(least, sum * sum / squares);
  }
  EXPECT_GT(least, 0.9 * kWorkers);
}

TEST(LearnedWeights, GoWithAWorkerThatTurns) {
  LearnedWeights learned(LearnedWeights::kFew);
  const std::vector<int> numbers = {0, 1, 2};
  const auto rounds = [&](int n, double third) {
    for (int round = 0; round < n; ++round) {
      learned.learn(0, 0.55);
      learned.learn(1, 0.55);
      learned.learn(2, third);
    }
  };
  rounds(1000, 0.55);
  EXPECT_EQ(learned.weights(numbers), (std::vector<int>{2, 2, 2}));
  rounds(5, 0.45);  // a bad batch or two
  EXPECT_EQ(learned.weights(numbers), (std::vector<int>{2, 2, 2}));
  rounds(20, 0.45);
  EXPECT_EQ(learned.weights(numbers), (std::vector<int>{2, 2, 0}));
}

TEST(LearnedWeights, AreEqualWhereNobodyIsRightMoreOftenThanWrong) {
  LearnedWeights learned(100);
  learned.learn(0, 0.4);
  learned.learn(1, 0.5);
  EXPECT_EQ(learned.weights(std::vector<int>{0, 1}), (std::vector<int>{1, 1}));
}

TEST(LearnedWeights, KeepTheirProportionsOverARestart) {
  LearnedWeights learned(60);
  learned.recall(0, 6, 6);
  learned.recall(1, 3, 6);
  EXPECT_EQ(learned.weights(std::vector<int>{0, 1}), (std::vector<int>{60, 30}));
}

TEST(ReduceWeights, StayBelowTheMostVotesAndAboveZero) {
  std::vector<int> weights = {1000, 500, 1, 0};
  reduce_weights(weights, 100);
  EXPECT_LE(std::accumulate(weights.begin(), weights.end(), 0), 100);
  EXPECT_GE(weights[2], 1);
  EXPECT_EQ(weights[3], 0);
  std::vector<int> equal = {12, 12, 12};
  reduce_weights(equal, 0);
  EXPECT_EQ(equal, (std::vector<int>{1, 1, 1}));
}

// Eight workers, k of them bad, over rounds of new signs: the truth is +, an honest worker is right
// with probability 0.65.
enum class Bad { kRandom, kInverted, kColluding };

struct Outcome {
  double plain, learned;  // share of right signs of the result, over the last rounds
};

Outcome run_of_bad_voters(int k, Bad bad) {
  constexpr int kWorkers = 8, kRounds = 30, kCounted = 10;
  constexpr double kRight = 0.65;
  LearnedWeights learned(LearnedWeights::kFew);
  std::vector<int> numbers(kWorkers);
  std::iota(numbers.begin(), numbers.end(), 0);
  double right[2] = {}, all = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto unit = [&](int worker, std::size_t i) {
      return static_cast<double>(mix64(static_cast<std::uint64_t>(1000 * round + worker), i) >>
                                 11) *
             0x1p-53;
    };
    Ballots ballots;
    for (int worker = 0; worker < kWorkers; ++worker) {
      ballots.push_back(signs_of([&](std::size_t i) {
        if (worker >= k) return unit(worker, i) < kRight;
        if (bad == Bad::kRandom) return unit(worker, i) < 0.5;
        if (bad == Bad::kInverted) return unit(worker, i) >= kRight;
        return unit(0, i) < 0.5;  // all of them the same coin
      }));
    }
    const std::vector<int> weights = learned.weights(numbers), equal(kWorkers, 1);
    for (int which = 0; which < 2 && round >= kRounds - kCounted; ++which) {
      const std::vector<int>& w = which == 0 ? equal : weights;
      for (std::size_t i = 0; i < 64 * kWords; ++i) {
        int sum = 0;
        for (std::size_t v = 0; v < kWorkers; ++v) {
          sum += w[v] * (((ballots[v].words[i / 64] >> (i % 64)) & 1) != 0 ? 1 : -1);
        }
        right[which] += sum > 0 ? 1 : sum == 0 ? 0.5 : 0;
        all += which == 0 ? 1 : 0;
      }
    }
    const auto found = agreements(ballots);
    for (int v = 0; v < kWorkers; ++v) {
      if (found[static_cast<std::size_t>(v)]) learned.learn(v, *found[static_cast<std::size_t>(v)]);
    }
  }
  return {right[0] / all, right[1] / all};
}

TEST(LearnedWeights, BringBackMostOfWhatBadVotersCost) {
  // what the honest ones would reach alone; a tie of an even number is right half of the time
  const auto honest = [](int k) {
    const int n = 8 - k;
    double sum = 0;
    for (int right = 0; right <= n; ++right) {
      const double p =
          std::exp(std::lgamma(n + 1) - std::lgamma(right + 1) - std::lgamma(n - right + 1) +
                   right * std::log(0.65) + (n - right) * std::log(0.35));
      sum += 2 * right > n ? p : 2 * right == n ? p / 2 : 0;
    }
    return sum;
  };
  for (const Bad bad : {Bad::kRandom, Bad::kInverted, Bad::kColluding}) {
    for (int k = 0; k <= 3; ++k) {
      const Outcome outcome = run_of_bad_voters(k, bad);
      const std::string which =
          std::to_string(k) + " bad voters of kind " + std::to_string(static_cast<int>(bad));
      EXPECT_GE(outcome.learned, honest(k) - 0.01) << which;
      EXPECT_TRUE(k == 0 || outcome.learned > outcome.plain) << which;
    }
  }
}

TEST(CoordinatorOptions, BoundAWorkersWeightByWhereItIsFrom) {
  EXPECT_EQ(CoordinatorOptions{.weighting = Weighting::kGiven}.most_weight_of_a_worker(), 65535);
  EXPECT_EQ(CoordinatorOptions{.weighting = Weighting::kLearned}.most_weight_of_a_worker(), 2);
  const CoordinatorOptions seven{.weighting = Weighting::kLearned, .most_weight = 7};
  EXPECT_EQ(seven.most_weight_of_a_worker(), 7);
}

}  // namespace
}  // namespace pride::coord::test
