// Generator: text from a model, token by token, each drawn from the logits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "pride/random_bits.h"
#include "train/models/gpt.h"
#include "train/text/vocabulary.h"

namespace pride::train {

struct SampleOptions {
  double temperature = 1;  // 0: the likeliest token
  std::size_t top_k = 0;   // draws from this many likeliest tokens; 0: from all
  double top_p = 1;        // draws from the fewest likeliest with this total probability
};

// Throws InvalidArgument, naming the flag.
void check(const SampleOptions& options);

// An index of `logits`, drawn from softmax(logits / temperature) after top_k, then top_p. Of equal
// logits the lower index is the likelier. Uses one 64-bit word of `bits`, or none at temperature 0.
// Throws InvalidArgument if there is no logit, or one is NaN or +Inf.
std::size_t next_token(std::span<const float> logits, const SampleOptions& options,
                       PhiloxStream& bits);

class Generator {
 public:
  // Draws from the first `n_choices` tokens of the model's vocabulary (it may be padded); after
  // `end`, if given, a text is over. `model` must live as long.
  Generator(const Gpt& model, std::size_t n_choices, std::optional<Token> end);

  // Continues `prompt` by up to `n` tokens, calling `take` with each; `end` is the last one if it
  // is drawn. When the context is full, the model continues from its later half. A longer prompt is
  // read from its last context tokens on. Throws InvalidArgument: an empty prompt, a token outside
  // the vocabulary. Rethrows exceptions of `take`.
  std::vector<Token> run(std::span<const Token> prompt, std::size_t n, const SampleOptions& options,
                         PhiloxStream bits, const std::function<void(Token)>& take) const;

 private:
  const Gpt& model_;
  std::size_t n_choices_;
  std::optional<Token> end_;
};

}  // namespace pride::train
