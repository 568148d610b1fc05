// SPDX-License-Identifier: Apache-2.0
#include "train/models/generator.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "pride/error.h"

namespace pride::train {
namespace {

at::Tensor ids_of(std::span<const Token> tokens) {
  const at::Tensor ids = at::empty({static_cast<std::int64_t>(tokens.size())}, at::kLong);
  std::ranges::copy(tokens, ids.data_ptr<std::int64_t>());
  return ids;
}

}  // namespace

Generator::Generator(const Gpt& model, std::size_t n_choices, std::optional<Token> end)
    : model_(model), n_choices_(n_choices), end_(end) {
  PRIDE_CHECK(n_choices >= 1 && static_cast<std::int64_t>(n_choices) <= model.size().vocabulary,
              "generate: a vocabulary of ", n_choices, " tokens, the model has ",
              model.size().vocabulary);
}

std::vector<Token> Generator::run(std::span<const Token> prompt, std::size_t n,
                                  const SampleOptions& options, PhiloxStream bits,
                                  const std::function<void(Token)>& take) const {
  PRIDE_CHECK(!prompt.empty(), "generate: the prompt has no token");
  for (const Token token : prompt) {
    PRIDE_CHECK(token < n_choices_, "generate: token ", token,
                " in the prompt, the vocabulary has ", n_choices_);
  }
  const at::NoGradGuard no_grad;
  const auto context = static_cast<std::size_t>(model_.size().context);
  std::vector<Token> all(prompt.begin(), prompt.end());
  KvCache cache;
  std::size_t unread = std::min(all.size(), context);
  for (std::size_t i = 0; i < n; ++i) {
    if (static_cast<std::size_t>(cache.length) + unread > context) {
      cache = {};
      unread = std::max<std::size_t>(1, context / 2);
    }
    const at::Tensor logits = model_.read(ids_of(std::span(all).last(unread)), cache).contiguous();
    all.push_back(
        static_cast<Token>(next_token({logits.data_ptr<float>(), n_choices_}, options, bits)));
    unread = 1;
    take(all.back());
    if (all.back() == end_) break;
  }
  return {all.begin() + static_cast<std::ptrdiff_t>(prompt.size()), all.end()};
}

}  // namespace pride::train
