// What a model chose, and how often that was right.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "train/fewshot/prompt.h"

namespace pride::train {

// Indices of the choices that score highest; of equal scores the first. Where a score is no number,
// none: the number of choices.
struct Picks {
  std::size_t by_sum = 0;    // log-probability of all tokens of the choice
  std::size_t by_byte = 0;   // the same divided by the bytes of the choice's text
  std::size_t by_token = 0;  // the same divided by the number of its tokens
};

// `log_probs`: of each choice, the sum over its tokens (nats).
Picks picks_of(const EncodedQuestion& question, std::span<const double> log_probs);

// Counts over questions; can be added up.
struct Tally {
  std::int64_t questions = 0;
  std::int64_t by_sum = 0, by_byte = 0, by_token = 0;  // right picks
  double loss = 0;                                     // nats of the right answers' tokens
  std::int64_t answer_tokens = 0;
  double chance = 0;  // right picks to expect of a die

  void add(const EncodedQuestion& question, std::span<const double> log_probs);
  Tally& operator+=(const Tally& other);
};

// Of a share `right` / n: sqrt(p (1 - p) / (n - 1)); none for less than two questions.
std::optional<double> standard_error(std::int64_t right, std::int64_t n);

// Share of the questions that whoever always picks the most frequent index gets right.
double majority(const QuestionList& questions);

}  // namespace pride::train
