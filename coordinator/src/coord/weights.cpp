// SPDX-License-Identifier: Apache-2.0
#include "coord/weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

namespace pride::coord {
namespace {

// The share of equal signs. Not set: no coordinate is used by both.
std::optional<double> agreement_of(const Serving::Signs& a, const Serving::Signs& b) {
  std::int64_t same = 0, seen = 0;
  for (std::size_t w = 0; w < std::min(a.words.size(), b.words.size()); ++w) {
    const std::uint64_t both = a.mask[w] & b.mask[w];
    seen += std::popcount(both);
    same += std::popcount(~(a.words[w] ^ b.words[w]) & both);
  }
  if (seen == 0) return {};
  return static_cast<double>(same) / static_cast<double>(seen);
}

// The upper median, so that fewer than half of the workers cannot move the others' median.
// REQUIRES: not empty.
double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

std::vector<std::optional<double>> agreements(std::span<const Serving::Signs> ballots) {
  std::vector<std::vector<double>> with(ballots.size());
  for (std::size_t i = 0; i < ballots.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const auto agreement = agreement_of(ballots[i], ballots[j]);
      if (!agreement) continue;
      with[i].push_back(*agreement);
      with[j].push_back(*agreement);
    }
  }
  std::vector<std::optional<double>> result(ballots.size());
  for (std::size_t i = 0; i < ballots.size(); ++i) {
    if (!with[i].empty()) result[i] = median(with[i]);
  }
  return result;
}

void LearnedWeights::learn(int number, double agreement) {
  const auto at = static_cast<std::size_t>(number);
  if (agreement_.size() <= at) agreement_.resize(at + 1);
  Average& average = agreement_[at];
  ++average.rounds;
  average.value +=
      std::max(kNew, 1.0 / static_cast<double>(average.rounds)) * (agreement - average.value);
}

void LearnedWeights::recall(int number, int weight, int largest) {
  // a record has only the proportions of weights: assume that the worker with the largest weight
  // is right at 3 of 4 coordinates, and the median other worker, too
  const double odds = std::pow(3.0, static_cast<double>(weight) / largest);
  const double right = odds / (1 + odds);
  learn(number, 0.5 + 0.5 * (2 * right - 1) * 0.5);
}

std::optional<double> LearnedWeights::agreement(int number) const {
  const auto at = static_cast<std::size_t>(number);
  if (at >= agreement_.size() || agreement_[at].rounds == 0) return {};
  return agreement_[at].value;
}

// Workers that are wrong independently, with probabilities p_i and p_j, agree with probability
// (1 + c_i c_j) / 2, c = 1 - 2p. The median worker's c is the root of the median product.
std::vector<int> LearnedWeights::weights(std::span<const int> numbers) const {
  std::vector<int> weights(numbers.size(), 1);
  std::vector<double> products, odds(numbers.size());
  for (const int number : numbers) {
    if (const auto found = agreement(number)) products.push_back(2 * *found - 1);
  }
  const double typical = products.empty() ? 0 : median(products);
  if (typical <= 0) return weights;
  double most = 0, sum = 0;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto found = agreement(numbers[i]);
    if (!found) continue;
    // no weight is above the median worker's: by chance an honest worker would get it, and the
    // others would lose votes
    const double most_c = std::min(std::sqrt(typical), 1 - 2 * kLeastWrong);
    const double c = std::clamp((2 * *found - 1) / std::sqrt(typical), 0.0, most_c);
    odds[i] = std::log((1 + c) / (1 - c));
    most = std::max(most, odds[i]);
    sum += odds[i];
  }
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (!agreement(numbers[i])) odds[i] = sum / static_cast<double>(products.size());
    weights[i] = static_cast<int>(std::lround(most_ * odds[i] / most));
  }
  return weights;
}

void reduce_weights(std::span<int> weights, std::int64_t most_votes) {
  const std::int64_t sum = std::accumulate(weights.begin(), weights.end(), std::int64_t{0});
  if (most_votes > 0 && sum > most_votes) {
    const auto room = most_votes - std::ssize(weights);
    for (int& w : weights) {
      if (w > 0) w = std::max<int>(1, static_cast<int>(w * room / sum));
    }
  }
  int divisor = 0;
  for (const int w : weights) divisor = std::gcd(divisor, w);
  for (int& w : weights) w = divisor > 1 ? w / divisor : w;
}

}  // namespace pride::coord
