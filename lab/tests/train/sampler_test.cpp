// Data order: the promises of the shardings, and dependence on the seed alone.
// SPDX-License-Identifier: Apache-2.0
#include "pride/train/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>

#include "pride/error.h"
#include "support/texts.h"
#include "train_names.h"

namespace pride::app {
namespace {

constexpr std::size_t kSamples = 103;  // no multiple of any world below
constexpr int kClasses = 10;

Sampler sampler(const std::string& sharding, int rank, int world, std::uint64_t seed = 7,
                std::span<const std::uint16_t> labels = {}, std::size_t n = kSamples) {
  return Sampler(
      n, labels,
      {.sharding = parse_sharding(sharding), .seed = seed, .rank = rank, .world = world});
}

std::vector<std::uint16_t> labels_of(std::size_t n) {
  std::vector<std::uint16_t> labels(n);
  for (std::size_t i = 0; i < n; ++i) labels[i] = static_cast<std::uint16_t>(i % kClasses);
  return labels;
}

std::vector<std::uint32_t> samples(Sampler& s, std::uint64_t first, std::size_t n) {
  std::vector<Draw> draws(n);
  s.draw(first, draws);
  std::vector<std::uint32_t> list;
  for (const Draw& draw : draws) list.push_back(draw.sample);
  return list;
}

TEST(Sampler, PartitionIsDisjointAndCoversEverythingInEachEpoch) {
  for (const int world : {1, 2, 3, 4, 7}) {
    for (std::uint32_t epoch = 0; epoch < 3; ++epoch) {
      std::multiset<std::uint32_t> all;
      for (int rank = 0; rank < world; ++rank) {
        const auto part = sampler("partition", rank, world).part(epoch);
        all.insert(part.begin(), part.end());
        EXPECT_LE(part.size() - kSamples / static_cast<std::size_t>(world), 1U);
      }
      EXPECT_EQ(all.size(), kSamples) << "world " << world << ", epoch " << epoch;
      EXPECT_EQ(std::set<std::uint32_t>(all.begin(), all.end()).size(), kSamples);
    }
  }
}

TEST(Sampler, PartitionDrawsTheSameGlobalBatchesForAnyWorldSize) {
  Sampler alone = sampler("partition", 0, 1, 7, {}, 120);
  const auto expected = samples(alone, 0, 12);
  std::set<std::uint32_t> together;
  for (int rank = 0; rank < 4; ++rank) {
    Sampler one = sampler("partition", rank, 4, 7, {}, 120);
    for (const std::uint32_t s : samples(one, 0, 3)) together.insert(s);
  }
  EXPECT_EQ(together, std::set<std::uint32_t>(expected.begin(), expected.end()));
}

TEST(Sampler, ReplicatePassesEverythingInAnOrderOfItsOwn) {
  Sampler a = sampler("replicate", 0, 4), b = sampler("replicate", 1, 4);
  EXPECT_EQ(a.epoch_draws(), kSamples);
  const auto first = samples(a, 0, kSamples), other = samples(b, 0, kSamples);
  EXPECT_EQ(std::set<std::uint32_t>(first.begin(), first.end()).size(), kSamples);
  EXPECT_EQ(std::set<std::uint32_t>(other.begin(), other.end()).size(), kSamples);
  EXPECT_NE(first, other);
  EXPECT_NE(first, samples(a, kSamples, kSamples)) << "the second epoch is shuffled anew";
}

TEST(Sampler, OrderDependsOnTheSeedAlone) {
  for (const std::string sharding : {"partition", "replicate"}) {
    Sampler a = sampler(sharding, 2, 4, 7), b = sampler(sharding, 2, 4, 7);
    Sampler c = sampler(sharding, 2, 4, 8);
    const auto whole = samples(a, 0, 60);
    // drawn in other pieces, from the middle first, as a resumed run does
    EXPECT_EQ(samples(b, 30, 30), std::vector<std::uint32_t>(whole.begin() + 30, whole.end()));
    EXPECT_EQ(samples(b, 0, 30), std::vector<std::uint32_t>(whole.begin(), whole.begin() + 30));
    EXPECT_NE(samples(c, 0, 60), whole);
  }
}

TEST(Sampler, DrawsNameTheirEpoch) {
  Sampler s = sampler("partition", 0, 4);
  std::vector<Draw> draws(2 * s.epoch_draws());
  s.draw(0, draws);
  EXPECT_EQ(draws[s.epoch_draws() - 1].epoch, 0U);
  EXPECT_EQ(draws[s.epoch_draws()].epoch, 1U);
}

// largest share of one class in a rank's part, averaged over ranks
double skew(double concentration) {
  const auto labels = labels_of(5000);
  const auto parts = dirichlet_parts(labels, 4, concentration, 11);
  double sum = 0;
  for (const auto& part : parts) {
    std::array<double, kClasses> counts{};
    for (const std::uint32_t i : part) counts[labels[i]] += 1;
    sum += *std::ranges::max_element(counts) / static_cast<double>(part.size());
  }
  return sum / 4;
}

TEST(Dirichlet, DealsEverySampleOnce) {
  const auto labels = labels_of(5000);
  std::multiset<std::uint32_t> all;
  for (const auto& part : dirichlet_parts(labels, 7, 0.5, 11)) all.insert(part.begin(), part.end());
  EXPECT_EQ(all.size(), labels.size());
  EXPECT_EQ(std::set<std::uint32_t>(all.begin(), all.end()).size(), labels.size());
}

TEST(Dirichlet, SkewsLabelsTheMoreTheSmallerItsParameter) {
  EXPECT_LT(skew(1000), 0.12);  // 0.1 if all classes are alike
  EXPECT_GT(skew(0.1), 0.25);
  EXPECT_GT(skew(0.1), skew(1));
  EXPECT_GT(skew(1), skew(1000));
}

TEST(Dirichlet, SurvivesTinyParametersOrSaysWhoIsLeftWithout) {
  const auto labels = labels_of(1000);
  texts::expect_error<InvalidArgument>(
      [&] {
        for (const auto& part : dirichlet_parts(labels, 32, 1e-3, 1)) EXPECT_FALSE(part.empty());
      },
      {"without a sample"});
}

TEST(Sampler, RefusesWhatCannotBe) {
  EXPECT_THROW(parse_sharding("half"), InvalidArgument);
  EXPECT_THROW(parse_sharding("dirichlet:"), InvalidArgument);
  EXPECT_THROW(parse_sharding("dirichlet:-1"), InvalidArgument);
  EXPECT_THROW(parse_sharding("dirichlet:1x"), InvalidArgument);
  EXPECT_THROW(sampler("dirichlet:1", 0, 2), InvalidArgument) << "no labels";
  EXPECT_THROW(sampler("partition", 0, 4, 7, {}, 3), InvalidArgument);
}

}  // namespace
}  // namespace pride::app
