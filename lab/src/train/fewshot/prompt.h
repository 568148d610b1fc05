// Converts a question to a language model's tokens (examples, query, and each choice), and its
// scores to picks and counts of right picks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "train/fewshot/questions.h"
#include "train/text/bpe.h"
#include "train/text/vocabulary.h"

namespace pride::train {

struct PromptOptions {
  std::size_t shots = 0;                 // examples before the question
  std::uint64_t seed = 0;                // chooses the examples
  std::optional<std::string> delimiter;  // instead of the set's own
  std::size_t context = 0;               // maximum input tokens of the model
};

// The model's input: each choice as a continuation of the same prompt.
struct EncodedQuestion {
  const Question* question = nullptr;
  std::vector<Token> prompt;                // never empty
  std::vector<std::vector<Token>> choices;  // never empty, each with the blank before it
  std::size_t cut = 0;                      // tokens cut from the prompt's left
};

// Questions that fit the model, and what was cut for that.
struct EncodedSet {
  std::vector<EncodedQuestion> questions;
  std::size_t n_cut = 0, cut_tokens = 0;  // prompts that lost tokens, and their total
  std::size_t n_left_out = 0;             // questions with a choice longer than the context

  // Notes about cuts, each beginning with `what`.
  std::vector<std::string> notes(const std::string& what) const;
};

// `k` of `pool`, in a random order that is a function of (seed, query, the pool's order) alone;
// none of them has the same query as `question`. Throws InvalidArgument if there are too few.
QuestionList draw_examples(const QuestionList& pool, const Question& question, std::size_t k,
                           std::uint64_t seed);

// The text before a choice: examples with their answers and a blank line after each, then the
// query. White space around queries is removed. White space at the delimiter's end is left out,
// because it belongs to the choice.
std::string prompt_text(const Question& question, const QuestionList& examples,
                        std::string_view delimiter);

// One per thread.
class QuestionEncoder {
 public:
  // Without a vocabulary, tokens are bytes.
  QuestionEncoder(std::shared_ptr<const Vocabulary> vocabulary, PromptOptions options);

  // A prompt that does not fit beside the longest choice loses tokens on its left. Nothing if even
  // then the context is too short for a token of prompt and that choice (whose last token is not
  // read). Throws InvalidArgument if `examples` are too few.
  std::optional<EncodedQuestion> encode(const Question& question, const QuestionList& examples,
                                        const std::string& delimiter);

  // For all of a set's questions in `part`, or the first `limit` of them. Skips a question with a
  // too long choice if `skip_long`. Otherwise throws DataError, naming the place; also if no
  // question remains.
  EncodedSet encode_part(const QuestionSet& set, Part part, bool skip_long,
                         std::size_t limit = SIZE_MAX);

 private:
  std::vector<Token> tokens_of(std::string_view text);

  std::shared_ptr<const Vocabulary> vocabulary_;
  std::optional<BpeEncoder> bpe_;
  PromptOptions options_;
};

// The index of the choice with the highest score; of equal scores the first. If a score is NaN: the
// number of choices.
struct Picks {
  std::size_t by_sum = 0;    // log-probability of all tokens of the choice
  std::size_t by_byte = 0;   // the same divided by the bytes of the choice's text
  std::size_t by_token = 0;  // the same divided by the number of its tokens
};

// `log_probs`: for each choice the sum over its tokens (nats).
Picks picks_of(const EncodedQuestion& question, std::span<const double> log_probs);

// Counts over questions.
struct Tally {
  std::int64_t questions = 0;
  std::int64_t by_sum = 0, by_byte = 0, by_token = 0;  // right picks
  double loss = 0;                                     // nats of the right answers' tokens
  std::int64_t answer_tokens = 0;
  double chance = 0;  // expected right picks at random

  void add(const EncodedQuestion& question, std::span<const double> log_probs);
};

// Standard error of the share `right` / n: sqrt(p (1 - p) / (n - 1)); none for fewer than two
// questions.
std::optional<double> standard_error(std::int64_t right, std::int64_t n);

// Share of right answers when always picking the most frequent index.
double majority(const QuestionList& questions);

}  // namespace pride::train
