// SPDX-License-Identifier: Apache-2.0
#include "train/fewshot/prompt.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>

#include "pride/digest.h"
#include "pride/error.h"
#include "pride/random_bits.h"
#include "train/streams.h"

namespace pride::train {
namespace {

constexpr const char* kBlanks = " \t\r\n\v\f";

std::string_view stripped(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

// size of the delimiter without the white space at its end, which belongs to the choice
std::size_t head_size(std::string_view delimiter) {
  return delimiter.find_last_not_of(kBlanks) + 1;  // npos + 1 is 0
}

}  // namespace

std::vector<std::string> EncodedSet::notes(const std::string& what) const {
  std::vector<std::string> texts;
  if (n_cut > 0) {
    texts.push_back(concat(what, ": ", n_cut, " of ", questions.size(),
                           " prompts are longer than the context and lost ", cut_tokens,
                           " tokens on their left"));
  }
  if (n_left_out > 0) {
    texts.push_back(concat(what, ": ", n_left_out,
                           " questions with a choice longer than the context are left out"));
  }
  return texts;
}

QuestionList draw_examples(const QuestionList& pool, const Question& question, std::size_t k,
                           std::uint64_t seed) {
  if (k == 0) return {};
  const auto same = [&](const Question* other) { return other->query == question.query; };
  const auto others = pool.size() - static_cast<std::size_t>(std::ranges::count_if(pool, same));
  PRIDE_CHECK(k <= others, question.place, ": ", k, " examples are requested, but there are ",
              others, " other questions");
  PhiloxStream bits(seed, streams::kExamples, hash_bytes(std::as_bytes(std::span(question.query))));
  QuestionList drawn;
  while (drawn.size() < k) {
    const Question* next = pool[bits.next_below(static_cast<std::uint32_t>(pool.size()))];
    if (!same(next) && std::ranges::find(drawn, next) == drawn.end()) drawn.push_back(next);
  }
  return drawn;
}

std::string prompt_text(const Question& question, const QuestionList& examples,
                        std::string_view delimiter) {
  std::string text;
  for (const Question* example : examples) {
    text += concat(stripped(example->query), delimiter, example->choices[example->gold], "\n\n");
  }
  return text + concat(stripped(question.query), delimiter.substr(0, head_size(delimiter)));
}

QuestionEncoder::QuestionEncoder(std::shared_ptr<const Vocabulary> vocabulary,
                                 PromptOptions options)
    : vocabulary_(std::move(vocabulary)), options_(std::move(options)) {
  if (vocabulary_) bpe_.emplace(*vocabulary_);
}

std::vector<Token> QuestionEncoder::tokens_of(std::string_view text) {
  std::vector<Token> tokens;
  if (bpe_) {
    bpe_->encode(text, tokens);
  } else {
    for (const char c : text) tokens.push_back(static_cast<std::uint8_t>(c));
  }
  return tokens;
}

std::optional<EncodedQuestion> QuestionEncoder::encode(const Question& question,
                                                       const QuestionList& pool,
                                                       const std::string& own_delimiter) {
  const std::string& delimiter = options_.delimiter ? *options_.delimiter : own_delimiter;
  const std::string blank = delimiter.substr(head_size(delimiter));
  EncodedQuestion encoded{.question = &question, .prompt = {}, .choices = {}};
  std::size_t longest = 0;
  for (const std::string& choice : question.choices) {
    encoded.choices.push_back(tokens_of(blank + choice));
    longest = std::max(longest, encoded.choices.back().size());
  }
  if (longest > options_.context) return std::nullopt;
  const QuestionList examples = draw_examples(pool, question, options_.shots, options_.seed);
  encoded.prompt = tokens_of(prompt_text(question, examples, delimiter));
  // the last token of a choice is predicted, not read
  const std::size_t room = options_.context + 1 - longest;
  if (encoded.prompt.size() > room) {
    encoded.cut = encoded.prompt.size() - room;
    encoded.prompt.erase(encoded.prompt.begin(),
                         encoded.prompt.begin() + static_cast<std::ptrdiff_t>(encoded.cut));
  }
  return encoded;
}

EncodedSet QuestionEncoder::encode_part(const QuestionSet& set, Part part, bool skip_long,
                                        std::size_t limit) {
  const QuestionList all = set.part(part), examples = set.examples(part);
  EncodedSet found;
  for (const Question* question : std::span(all).first(std::min(limit, all.size()))) {
    std::optional<EncodedQuestion> encoded = encode(*question, examples, set.delimiter());
    if (!encoded) {
      if (!skip_long) {
        throw DataError(concat(question->place, ": a choice has more tokens than the model reads ",
                               "at a time (", options_.context,
                               "); --skip-long leaves such questions out"));
      }
      ++found.n_left_out;
      continue;
    }
    found.n_cut += encoded->cut > 0 ? 1 : 0;
    found.cut_tokens += encoded->cut;
    found.questions.push_back(*std::move(encoded));
  }
  if (!found.questions.empty()) return found;
  throw DataError(concat(set.file().string(), ": no question is left: ", all.size(),
                         " in this part, ", found.n_left_out,
                         " of them with a choice longer than the model's context of ",
                         options_.context));
}

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
