// Drawing tokens: frequencies against softmax by hand, the effect of the limits, and repeatability.
// SPDX-License-Identifier: Apache-2.0
#include "train/models/generator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "pride/error.h"
#include "train_names.h"

namespace pride::app {
namespace {

constexpr int kDraws = 40'000;
constexpr double kFiveDeviations = 0.0125;  // of a share, at worst sqrt(0.25 / 40000)

const std::vector<float> kLogits = {1, 3, -2, 3, 0.5, -std::numeric_limits<float>::infinity()};

std::vector<double> shares(const SampleOptions& options) {
  PhiloxStream bits(17, 1, 0);
  std::vector<double> counts(kLogits.size());
  for (int i = 0; i < kDraws; ++i) counts[next_token(kLogits, options, bits)] += 1.0 / kDraws;
  return counts;
}

// softmax over the given indices
void expect_softmax(const std::vector<double>& actual, double temperature,
                    const std::vector<std::size_t>& kept) {
  std::vector<double> expected(kLogits.size());
  double sum = 0;
  for (const std::size_t i : kept) sum += expected[i] = std::exp(kLogits[i] / temperature);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i] / sum, kFiveDeviations) << i;
    EXPECT_TRUE(expected[i] > 0 || actual[i] == 0) << i;
  }
}

TEST(NextToken, DrawsFromTheSoftmaxOfTheTemperature) {
  expect_softmax(shares({}), 1, {0, 1, 2, 3, 4});
  expect_softmax(shares({.temperature = 3}), 3, {0, 1, 2, 3, 4});
}

TEST(NextToken, TopKKeepsTheLikeliestAndOfEqualsTheFirst) {
  expect_softmax(shares({.top_k = 3}), 1, {0, 1, 3});
  expect_softmax(shares({.top_k = 1}), 1, {1});
  expect_softmax(shares({.top_k = 100}), 1, {0, 1, 2, 3, 4});
}

TEST(NextToken, TopPKeepsTheFewestThatReachIt) {
  // softmax: 0.44 0.44 (1, 3), then 0.06 (0), 0.036 (4), 0.003 (2)
  expect_softmax(shares({.top_p = 0.4}), 1, {1});
  expect_softmax(shares({.top_p = 0.5}), 1, {1, 3});
  expect_softmax(shares({.top_p = 0.9}), 1, {0, 1, 3});
  expect_softmax(shares({.top_p = 0.999999}), 1, {0, 1, 2, 3, 4});
  // of what top_k left: 1 has half of it
  expect_softmax(shares({.top_k = 2, .top_p = 0.49}), 1, {1});
}

TEST(NextToken, TakesTheLikeliestAtZeroWithoutADraw) {
  PhiloxStream bits(1, 2, 3), same(1, 2, 3);
  EXPECT_EQ(next_token(kLogits, {.temperature = 0}, bits), 1U);
  EXPECT_EQ(bits.next_u64(), same.next_u64());
}

TEST(NextToken, TakesOneWordADraw) {
  PhiloxStream bits(1, 2, 3), same(1, 2, 3);
  next_token(kLogits, {.top_k = 2}, bits);
  same.next_u64();
  EXPECT_EQ(bits.next_u64(), same.next_u64());
}

TEST(NextToken, RefusesWhatHasNoMeaning) {
  PhiloxStream bits(1, 2, 3);
  const std::vector<float> nan = {1, std::nanf("")};
  EXPECT_THROW(next_token(nan, {}, bits), InvalidArgument);
  EXPECT_THROW(next_token({}, {}, bits), InvalidArgument);
  EXPECT_THROW(check({.temperature = -1}), InvalidArgument);
  EXPECT_THROW(check({.top_p = 0}), InvalidArgument);
  EXPECT_THROW(check({.top_p = 1.5}), InvalidArgument);
}

}  // namespace
}  // namespace pride::app
