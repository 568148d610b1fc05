// SPDX-License-Identifier: Apache-2.0
#include "coord/weights.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace pride::coord {
namespace {

int sign_at(const Serving::Signs& signs, std::size_t word, int bit) {
  return ((signs.words[word] >> bit) & 1) != 0 ? 1 : -1;
}

}  // namespace

std::vector<std::optional<double>> agreements(std::span<const Serving::Signs> ballots,
                                              std::span<const int> weights) {
  std::vector<std::uint64_t> same(ballots.size()), seen(ballots.size());
  const std::size_t n_words = ballots.empty() ? 0 : ballots[0].words.size();
  for (std::size_t w = 0; w < n_words; ++w) {
    for (int bit = 0; bit < 64; ++bit) {
      // a coordinate that a worker does not use has no vote of its
      std::int64_t sum = 0;
      const auto vote = [&](std::size_t i) -> std::int64_t {
        const bool has = ((ballots[i].mask[w] >> bit) & 1) != 0;
        return has ? std::int64_t{weights[i]} * sign_at(ballots[i], w, bit) : 0;
      };
      for (std::size_t i = 0; i < ballots.size(); ++i) sum += vote(i);
      for (std::size_t i = 0; i < ballots.size(); ++i) {
        const std::int64_t others = sum - vote(i);
        if (others == 0 || ((ballots[i].mask[w] >> bit) & 1) == 0) continue;
        ++seen[i];
        same[i] += (others > 0) == (sign_at(ballots[i], w, bit) > 0) ? 1 : 0;
      }
    }
  }
  std::vector<std::optional<double>> result(ballots.size());
  for (std::size_t i = 0; i < ballots.size(); ++i) {
    if (seen[i] != 0) result[i] = static_cast<double>(same[i]) / static_cast<double>(seen[i]);
  }
  return result;
}

void LearnedWeights::learn(int number, double agreement) {
  const auto at = static_cast<std::size_t>(number);
  if (wrong_.size() <= at) wrong_.resize(at + 1);
  const double wrong = 1 - agreement;
  wrong_[at] = wrong_[at] ? *wrong_[at] + kNew * (wrong - *wrong_[at]) : wrong;
}

void LearnedWeights::recall(int number, int weight, int largest) {
  // only their proportions are known: the largest is taken for a worker that is right at 3 of 4
  const double odds = std::exp(static_cast<double>(weight) / largest * std::log(3.0));
  const auto at = static_cast<std::size_t>(number);
  if (wrong_.size() <= at) wrong_.resize(at + 1);
  wrong_[at] = 1 / (1 + odds);
}

std::optional<double> LearnedWeights::agreement(int number) const {
  const auto at = static_cast<std::size_t>(number);
  if (at >= wrong_.size() || !wrong_[at]) return {};
  return 1 - *wrong_[at];
}

double LearnedWeights::log_odds(int number) const {
  const double p = std::max(kLeastWrong, *wrong_[static_cast<std::size_t>(number)]);
  return p > 0.5 - kDoubt ? 0 : std::log((1 - p) / p);
}

std::vector<int> LearnedWeights::weights(std::span<const int> numbers) const {
  double most = 0, sum = 0;
  int known = 0;
  for (const int number : numbers) {
    if (!agreement(number)) continue;
    most = std::max(most, log_odds(number));
    sum += log_odds(number);
    ++known;
  }
  std::vector<int> weights(numbers.size(), 1);
  if (most == 0) return weights;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const double odds = agreement(numbers[i]) ? log_odds(numbers[i]) : sum / known;
    const double weight = std::round(most_ * odds / most);
    weights[i] = odds == 0 ? 0 : std::max(1, static_cast<int>(weight));
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
