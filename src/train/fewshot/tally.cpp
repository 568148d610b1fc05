// SPDX-License-Identifier: Apache-2.0
#include "train/fewshot/tally.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace pride::train {

Picks picks_of(const EncodedQuestion& question, std::span<const double> log_probs) {
  if (std::ranges::any_of(log_probs, [](double x) { return std::isnan(x); })) {
    return {log_probs.size(), log_probs.size(), log_probs.size()};
  }
  Picks picks;
  const auto per_byte = [&](std::size_t i) {
    return log_probs[i] / static_cast<double>(question.question->choices[i].size());
  };
  const auto per_token = [&](std::size_t i) {
    return log_probs[i] / static_cast<double>(question.choices[i].size());
  };
  for (std::size_t i = 1; i < log_probs.size(); ++i) {
    if (log_probs[i] > log_probs[picks.by_sum]) picks.by_sum = i;
    if (per_byte(i) > per_byte(picks.by_byte)) picks.by_byte = i;
    if (per_token(i) > per_token(picks.by_token)) picks.by_token = i;
  }
  return picks;
}

void Tally::add(const EncodedQuestion& question, std::span<const double> log_probs) {
  const std::size_t gold = question.question->gold;
  const Picks picks = picks_of(question, log_probs);
  ++questions;
  by_sum += picks.by_sum == gold ? 1 : 0;
  by_byte += picks.by_byte == gold ? 1 : 0;
  by_token += picks.by_token == gold ? 1 : 0;
  loss -= log_probs[gold];
  answer_tokens += static_cast<std::int64_t>(question.choices[gold].size());
  chance += 1.0 / static_cast<double>(question.choices.size());
}

Tally& Tally::operator+=(const Tally& other) {
  questions += other.questions;
  by_sum += other.by_sum;
  by_byte += other.by_byte;
  by_token += other.by_token;
  loss += other.loss;
  answer_tokens += other.answer_tokens;
  chance += other.chance;
  return *this;
}

std::optional<double> standard_error(std::int64_t right, std::int64_t n) {
  if (n < 2) return std::nullopt;
  const double p = static_cast<double>(right) / static_cast<double>(n);
  return std::sqrt(p * (1 - p) / static_cast<double>(n - 1));
}

double majority(const QuestionList& questions) {
  std::map<std::size_t, std::size_t> counts;
  std::size_t most = 0;
  for (const Question* question : questions) most = std::max(most, ++counts[question->gold]);
  return static_cast<double>(most) /
         static_cast<double>(std::max<std::size_t>(questions.size(), 1));
}

}  // namespace pride::train
