// Weights that are learned from how often a worker's signs agree with the others'.
//
// Source: Nitzan and Paroush 1982: the vote that is right most often weighs voters by
//         ln((1-p)/p), p = the probability that a voter is wrong. signSGD-FV (arXiv:2403.16372)
//         estimates p on the server from the results.
// Deviates: p is of a sample of coordinates, against the result of the other voters of the round
//         (its own vote would agree with itself), averaged exponentially; weights are whole
//         numbers from 0 to a bound, in proportion; a worker that is wrong half of the time, or
//         more, is left out, where signSGD-FD (arXiv:2402.01340) would turn its votes over.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "coord/serving.h"

namespace pride::coord {

// Of each ballot: the share of the sampled coordinates at which its sign is that of the weighted
// vote of the others; ties of theirs are left out. Not set: the others had no opinion at all.
std::vector<std::optional<double>> agreements(std::span<const Serving::Signs> ballots,
                                              std::span<const int> weights);

class LearnedWeights {
 public:
  static constexpr double kNew = 0.2;          // share of the newest round in the average
  static constexpr double kLeastWrong = 0.02;  // p is taken for at least this
  static constexpr double kDoubt = 0.002;      // a worker is left out from p = 1/2 - this on

  explicit LearnedWeights(int most) : most_(most) {}

  void learn(int number, double agreement);
  // As in the last record, whose largest weight was `largest`: after a restart.
  void recall(int number, int weight, int largest);

  std::optional<double> agreement(int number) const;  // the average

  // Of these workers, from 0 to `most`; one that nothing is known of counts like their mean. All 1
  // where nobody is right more often than wrong.
  std::vector<int> weights(std::span<const int> numbers) const;

 private:
  double log_odds(int number) const;

  int most_;
  std::vector<std::optional<double>> wrong_;  // p by number
};

// Divides weights, where their sum is above `most_votes` (0: no limit), and then by their greatest
// common divisor. None that was above 0 becomes 0.
void reduce_weights(std::span<int> weights, std::int64_t most_votes);

}  // namespace pride::coord
