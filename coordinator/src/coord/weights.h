// Weights learned from how often workers' signs agree.
//
// Source: Nitzan and Paroush 1982: the vote that is right most often weighs voters by
//         ln((1-p)/p), p = the probability that a voter is wrong. signSGD-FV (arXiv:2403.16372)
//         estimates p on the server, from agreement with results.
// Deviates: p is from agreement with the median other worker, on a sample of coordinates. By
//         agreement with the others' result, two workers that send the same signs would seem right
//         and outvote six honest ones. A minority does not move a median. The average is over all
//         rounds up to fifty, then exponential. No worker weighs more than the median worker
//         (measured in coordinator/docs/design.md). A worker is left out if its log odds round to
//         0 votes. So a worker that is wrong half of the time, or more, is always left out;
//         signSGD-FD (arXiv:2402.01340) would invert its votes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "pride/serving.h"

namespace pride::coord {

// For each ballot the median agreement with the other ballots: the share of equal signs among the
// sampled coordinates that both ballots use. Not set: no other ballot uses any of these
// coordinates.
std::vector<std::optional<double>> agreements(std::span<const Serving::Signs> ballots);

class LearnedWeights {
 public:
  static constexpr double kNew = 0.02;         // share of the newest round, after the fiftieth
  static constexpr double kLeastWrong = 0.02;  // lower bound of p

  // The default bound. It is small so that nearly equal workers have equal votes: their ties are
  // decided by new bits at each step. A worker with a slightly larger weight would decide all of
  // them.
  static constexpr int kFew = 2;

  explicit LearnedWeights(int most) : most_(most) {}

  void learn(int number, double agreement);
  // After a restart: from its weight in the last record, whose largest weight was `largest`.
  void recall(int number, int weight, int largest);

  std::optional<double> agreement(int number) const;  // the average

  // The weights of these workers, from 0 to `most`. A worker without agreement() gets the mean of
  // the others. All are 1 if no worker is right more often than wrong.
  std::vector<int> weights(std::span<const int> numbers) const;

 private:
  int most_;
  struct Average {
    std::int64_t rounds = 0;
    double value = 0;
  };
  std::vector<Average> agreement_;  // by number
};

// Scales weights down if their sum is above `most_votes` (0: no limit), then divides by their
// greatest common divisor. A weight above 0 stays above 0.
void reduce_weights(std::span<int> weights, std::int64_t most_votes);

}  // namespace pride::coord
