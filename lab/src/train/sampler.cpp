// SPDX-License-Identifier: Apache-2.0
#include "pride/train/sampler.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "pride/error.h"
#include "pride/random_bits.h"
#include "train/streams.h"

namespace pride::train {
namespace {

// Fisher and Yates
void shuffle(std::vector<std::uint32_t>& items, PhiloxStream bits) {
  for (std::size_t i = items.size(); i > 1; --i) {
    std::swap(items[i - 1], items[bits.next_below(static_cast<std::uint32_t>(i))]);
  }
}

std::vector<std::uint32_t> all_samples(std::size_t n) {
  std::vector<std::uint32_t> items(n);
  std::iota(items.begin(), items.end(), 0u);
  return items;
}

}  // namespace

Sharding parse_sharding(std::string_view text) {
  if (text == "partition") return {Sharding::Kind::kPartition};
  if (text == "replicate") return {Sharding::Kind::kReplicate};
  constexpr std::string_view kPrefix = "dirichlet:";
  if (text.starts_with(kPrefix)) {
    const std::string_view number = text.substr(kPrefix.size());
    double a = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), a);
    const bool whole = error == std::errc() && end == number.data() + number.size();
    if (whole && std::isfinite(a) && a > 0) return {Sharding::Kind::kDirichlet, a};
  }
  throw InvalidArgument(
      concat("--sharding ", text, ": must be partition, replicate or dirichlet:A with A > 0"));
}

Sampler::Sampler(std::size_t n_samples, std::span<const std::uint16_t> labels,
                 SamplerOptions options)
    : options_(options), n_samples_(n_samples) {
  const auto world = static_cast<std::size_t>(options.world);
  PRIDE_CHECK(n_samples >= world && n_samples <= UINT32_MAX, "sharding: ", n_samples,
              " training samples for ", world, " workers");
  if (options.sharding.kind != Sharding::Kind::kDirichlet) return;
  PRIDE_CHECK(labels.size() == n_samples,
              "--sharding dirichlet needs a task with labels (cifar10, imagenet)");
  auto parts = dirichlet_parts(labels, options.world, options.sharding.concentration, options.seed);
  own_ = std::move(parts[static_cast<std::size_t>(options.rank)]);
}

std::uint64_t Sampler::epoch_draws() const noexcept {
  const bool all = options_.sharding.kind == Sharding::Kind::kReplicate;
  return all ? n_samples_ : n_samples_ / static_cast<std::size_t>(options_.world);
}

// partition drops the remainder, another one each epoch, so that all ranks stay in the same epoch
std::uint64_t Sampler::part_size() const noexcept {
  return options_.sharding.kind == Sharding::Kind::kDirichlet ? own_.size() : epoch_draws();
}

std::vector<std::uint32_t> Sampler::part(std::uint32_t epoch) const {
  const auto rank = static_cast<std::uint32_t>(options_.rank);
  if (options_.sharding.kind == Sharding::Kind::kPartition) {
    std::vector<std::uint32_t> all = all_samples(n_samples_);
    shuffle(all, PhiloxStream(options_.seed, streams::kShuffle, epoch));
    std::vector<std::uint32_t> mine;
    for (std::size_t i = rank; i < all.size(); i += static_cast<std::size_t>(options_.world)) {
      mine.push_back(all[i]);
    }
    return mine;
  }
  std::vector<std::uint32_t> mine = own_.empty() ? all_samples(n_samples_) : own_;
  shuffle(mine, PhiloxStream(options_.seed, streams::kShuffle, epoch, rank + 1));
  return mine;
}

void Sampler::draw(std::uint64_t first, std::span<Draw> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto epoch = static_cast<std::int64_t>((first + i) / part_size());
    if (epoch != epoch_) {
      part_ = part(static_cast<std::uint32_t>(epoch));
      epoch_ = epoch;
    }
    out[i] = {part_[(first + i) % part_size()], static_cast<std::uint32_t>(epoch)};
  }
}

}  // namespace pride::train
