// Generator: text from a model, token by token.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "train/models/gpt.h"
#include "train/text/next_token.h"
#include "train/text/vocabulary.h"

namespace pride::train {

class Generator {
 public:
  // Draws from the first `n_choices` tokens of the model's vocabulary (it may be padded); after
  // `end`, if given, a text is over. `model` must live as long.
  Generator(const Gpt& model, std::size_t n_choices, std::optional<Token> end);

  // Continues `prompt` by up to `n` tokens, each told to `take`; `end` is the last one if it is
  // drawn. Once the context is full, the model goes on from the later half of it. A longer prompt
  // is read from its last context tokens on. Throws InvalidArgument: an empty prompt, a token that
  // is none of the model's; what `take` throws.
  std::vector<Token> run(std::span<const Token> prompt, std::size_t n, const SampleOptions& options,
                         PhiloxStream bits, const std::function<void(Token)>& take) const;

 private:
  const Gpt& model_;
  std::size_t n_choices_;
  std::optional<Token> end_;
};

}  // namespace pride::train
