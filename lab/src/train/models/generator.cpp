// SPDX-License-Identifier: Apache-2.0
#include "train/models/generator.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "pride/error.h"

namespace pride::train {
namespace {

at::Tensor ids_of(std::span<const Token> tokens) {
  const at::Tensor ids = at::empty({static_cast<std::int64_t>(tokens.size())}, at::kLong);
  std::ranges::copy(tokens, ids.data_ptr<std::int64_t>());
  return ids;
}

// Indices, sorted by likelihood if the options need an order.
std::vector<std::size_t> candidates(std::span<const float> logits, const SampleOptions& o) {
  std::vector<std::size_t> all(logits.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  const auto likelier = [&](std::size_t a, std::size_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  if (o.top_k > 0 && o.top_k < all.size()) {
    std::ranges::nth_element(all, all.begin() + static_cast<std::ptrdiff_t>(o.top_k), likelier);
    all.resize(o.top_k);
  }
  if (o.top_k > 0 || o.top_p < 1) std::ranges::sort(all, likelier);
  return all;
}

}  // namespace

void check(const SampleOptions& o) {
  PRIDE_CHECK(std::isfinite(o.temperature) && o.temperature >= 0, "--temperature ", o.temperature,
              ": must be 0 or more");
  PRIDE_CHECK(o.top_p > 0 && o.top_p <= 1, "--top-p ", o.top_p, ": must be above 0 and at most 1");
}

std::size_t next_token(std::span<const float> logits, const SampleOptions& options,
                       PhiloxStream& bits) {
  check(options);
  PRIDE_CHECK(!logits.empty(), "next token: no logits");
  const bool good = std::ranges::none_of(
      logits, [](float l) { return std::isnan(l) || l == std::numeric_limits<float>::infinity(); });
  PRIDE_CHECK(good, "next token: the model's logits have NaN or Inf");
  const auto best = std::ranges::max_element(logits);
  if (options.temperature == 0) return static_cast<std::size_t>(best - logits.begin());

  std::vector<std::size_t> chosen = candidates(logits, options);
  std::vector<double> sums;  // of the weights so far
  double sum = 0;
  for (const std::size_t i : chosen) {
    sum += std::exp((static_cast<double>(logits[i]) - *best) / options.temperature);
    sums.push_back(sum);
  }
  if (options.top_p < 1) {
    const auto last = std::ranges::lower_bound(sums, options.top_p * sum);
    sums.resize(static_cast<std::size_t>(std::min(last, sums.end() - 1) - sums.begin()) + 1);
  }
  const double u = static_cast<double>(bits.next_u64() >> 11) * 0x1p-53;
  // the first token whose sum is above the drawn share; a token of weight zero is never drawn
  const auto drawn = std::ranges::upper_bound(sums, u * sums.back());
  return chosen[static_cast<std::size_t>(std::min(drawn, sums.end() - 1) - sums.begin())];
}

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
  const c10::NoGradGuard no_grad;
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
