// SPDX-License-Identifier: Apache-2.0
#include "train/text/next_token.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "pride/error.h"

namespace pride::train {
namespace {

// Indices, the likeliest first where the options ask for an order.
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
  // the first whose sum is above the drawn share: one of weight zero is never it
  const auto drawn = std::ranges::upper_bound(sums, u * sums.back());
  return chosen[static_cast<std::size_t>(std::min(drawn, sums.end() - 1) - sums.begin())];
}

}  // namespace pride::train
