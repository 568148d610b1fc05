// Gamma variates; label-skewed parts: each class is cut into shares drawn from a symmetric
// Dirichlet distribution.
// SPDX-License-Identifier: Apache-2.0
// Source    Marsaglia and Tsang 2000; Hsu et al. 2019, arXiv:1909.06335.
#include "train/gamma.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "pride/error.h"
#include "pride/random_bits.h"
#include "pride/train/sampler.h"
#include "train/streams.h"

namespace pride::train {
namespace {

double open_unit(PhiloxStream& bits) {
  return (static_cast<double>(bits.next_u64() >> 12) + 0.5) * 0x1p-52;
}

double normal(PhiloxStream& bits) {
  const double radius = std::sqrt(-2 * std::log(open_unit(bits)));
  return radius * std::cos(2 * std::numbers::pi * open_unit(bits));
}

}  // namespace

double log_gamma_variate(double shape, PhiloxStream& bits) {
  // Gamma(a) is Gamma(a + 1) times U^(1/a)
  if (shape < 1) return log_gamma_variate(shape + 1, bits) + std::log(open_unit(bits)) / shape;
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = normal(bits);
    const double v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(open_unit(bits)) < 0.5 * x * x + d - d * v + d * std::log(v)) {
      return std::log(d * v);
    }
  }
}

namespace {

std::vector<double> dirichlet(int world, double concentration, PhiloxStream& bits) {
  std::vector<double> shares(static_cast<std::size_t>(world));
  for (double& share : shares) share = log_gamma_variate(concentration, bits);
  const double largest = *std::ranges::max_element(shares);
  double sum = 0;
  for (double& share : shares) sum += share = std::exp(share - largest);
  for (double& share : shares) share /= sum;
  return shares;
}

}  // namespace

std::vector<std::vector<std::uint32_t>> dirichlet_parts(std::span<const std::uint16_t> labels,
                                                        int world, double concentration,
                                                        std::uint64_t seed) {
  const std::size_t classes = labels.empty() ? 0 : *std::ranges::max_element(labels) + 1u;
  std::vector<std::vector<std::uint32_t>> by_class(classes);
  for (std::size_t i = 0; i < labels.size(); ++i) {
    by_class[labels[i]].push_back(static_cast<std::uint32_t>(i));
  }
  std::vector<std::vector<std::uint32_t>> parts(static_cast<std::size_t>(world));
  for (std::size_t c = 0; c < by_class.size(); ++c) {
    std::vector<std::uint32_t>& items = by_class[c];
    if (items.empty()) continue;
    PhiloxStream bits(seed, streams::kDirichlet, c);
    const std::vector<double> shares = dirichlet(world, concentration, bits);
    for (std::size_t i = items.size(); i > 1; --i) {
      std::swap(items[i - 1], items[bits.next_below(static_cast<std::uint32_t>(i))]);
    }
    // cut at the running sums of the shares; the last cut is the end
    double sum = 0;
    std::size_t begin = 0;
    for (std::size_t r = 0; r < parts.size(); ++r) {
      sum += shares[r];
      const auto cut =
          static_cast<std::size_t>(std::llround(sum * static_cast<double>(items.size())));
      const std::size_t end = r + 1 == parts.size() ? items.size() : std::min(cut, items.size());
      parts[r].insert(parts[r].end(), items.begin() + static_cast<std::ptrdiff_t>(begin),
                      items.begin() + static_cast<std::ptrdiff_t>(end));
      begin = end;
    }
  }
  for (std::size_t r = 0; r < parts.size(); ++r) {
    PRIDE_CHECK(!parts[r].empty(), "--sharding dirichlet:", concentration, " leaves worker ", r,
                " of ", world, " without a sample; use a larger A or another --seed");
    std::ranges::sort(parts[r]);
  }
  return parts;
}

}  // namespace pride::train
