// From a question to the tokens that a language model reads (examples, query, and each choice), and
// from its scores to what it chose and how often that was right.
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
  std::uint64_t seed = 0;                // chooses them
  std::optional<std::string> delimiter;  // instead of the set's own
  std::size_t context = 0;               // most tokens that the model reads
};

// What the model is asked: each choice as what comes after the same prompt.
struct EncodedQuestion {
  const Question* question = nullptr;
  std::vector<Token> prompt;                // never empty
  std::vector<std::vector<Token>> choices;  // never empty, each with the blank before it
  std::size_t cut = 0;                      // tokens that the prompt lost on its left
};

// Questions that a model can be asked, and what had to be done for it.
struct EncodedSet {
  std::vector<EncodedQuestion> questions;
  std::size_t n_cut = 0, cut_tokens = 0;  // prompts that lost tokens, and how many in all
  std::size_t n_left_out = 0;             // questions with a choice longer than the context

  // What is not as asked, each beginning with `what`.
  std::vector<std::string> notes(const std::string& what) const;
};

// `k` of `pool`, in a random order that is a function of (seed, query, the pool's order) alone;
// none of them has the same query as `question`. Throws InvalidArgument if there are too few.
QuestionList draw_examples(const QuestionList& pool, const Question& question, std::size_t k,
                           std::uint64_t seed);

// The text before a choice: examples with their answers and a blank line after each, then the
// query. White space around queries goes, and so does that at the delimiter's end, which is part
// of the choice.
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

  // Of all of a set's questions in `part`, or of the first `limit` of them. Where a choice is too
  // long, the question is left out if `skip_long`. Throws DataError, naming the place, if not; or
  // if no question remains.
  EncodedSet encode_part(const QuestionSet& set, Part part, bool skip_long,
                         std::size_t limit = SIZE_MAX);

 private:
  std::vector<Token> tokens_of(std::string_view text);

  std::shared_ptr<const Vocabulary> vocabulary_;
  std::optional<BpeEncoder> bpe_;
  PromptOptions options_;
};

// Indices of the choices that score highest; of equal scores the first. Where a score is no number,
// none: the number of choices.
struct Picks {
  std::size_t by_sum = 0;    // log-probability of all tokens of the choice
  std::size_t by_byte = 0;   // the same divided by the bytes of the choice's text
  std::size_t by_token = 0;  // the same divided by the number of its tokens
};

// `log_probs`: of each choice, the sum over its tokens (nats).
Picks picks_of(const EncodedQuestion& question, std::span<const double> log_probs);

// Counts over questions.
struct Tally {
  std::int64_t questions = 0;
  std::int64_t by_sum = 0, by_byte = 0, by_token = 0;  // right picks
  double loss = 0;                                     // nats of the right answers' tokens
  std::int64_t answer_tokens = 0;
  double chance = 0;  // right picks to expect of a die

  void add(const EncodedQuestion& question, std::span<const double> log_probs);
};

// Of a share `right` / n: sqrt(p (1 - p) / (n - 1)); none for less than two questions.
std::optional<double> standard_error(std::int64_t right, std::int64_t n);

// Share of the questions that whoever always picks the most frequent index gets right.
double majority(const QuestionList& questions);

}  // namespace pride::train
