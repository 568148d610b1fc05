// Lion Cub: votes of p bits against the sign of the mean, by scale.
// SPDX-License-Identifier: Apache-2.0
// Oracle: the sign of the sum of the blends, in double.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <fstream>
#include <functional>
#include <sstream>

#include "methods/lion_cub_training.h"

namespace pride::lion_cub_scale_test {
namespace {

using cub::Options;
using cub::params_of;
using testing::Training;

constexpr std::size_t kRows = 256, kCoords = kRows * 256;
using Gradient = std::function<double(int rank, std::size_t i)>;

// Coordinates where the vote differs from the sign of the mean of the blends, after one step from
// zero momentum: the blend is a tenth of the gradient. In percent.
struct Wrong {
  double share = 0;  // of the coordinates
  double lost = 0;   // of the sum of |mean|
};

Wrong wrong_votes(const Options& options, int world, const Gradient& gradient) {
  const Layout layout({{"w", {kRows, kCoords / kRows}}});
  Training run{.world = world, .steps = 1};
  run.options.method = "lion-cub";
  run.options.options = options;
  run.options.options["sync"] = "none";
  run.options.groups = {{.lr = 1.0}};
  run.grad = [&](int rank, std::int64_t, std::size_t, std::size_t i) {
    return static_cast<float>(gradient(rank, i));
  };
  const auto params = params_of(layout, run);
  Wrong wrong;
  double all = 0;
  for (std::size_t i = 0; i < kCoords; ++i) {
    double mean = 0;
    for (int r = 0; r < world; ++r) mean += gradient(r, i);
    all += std::fabs(mean);
    const double moved = double{testing::initial(0, i)} - double{params[i]};
    if (moved * mean >= 0) continue;
    wrong.share += 100.0 / kCoords;
    wrong.lost += 100 * std::fabs(mean);
  }
  wrong.lost /= all;
  return wrong;
}

Options scale(const std::string& name, int bits, const std::string& shared = "yes") {
  return {{"bits", std::to_string(bits)},
          {"scale", name},
          {"granularity", "tensor"},
          {"shared", shared}};
}

// Ranks whose gradients differ in size as well.
double of_unlike_ranks(int rank, std::size_t i) {
  return double{testing::gradient(rank, 5, 0, i) * static_cast<float>(1 + rank % 3) + 0.01f};
}

// With a shared maximum a level is the blend, rounded, and none saturates.
TEST(LionCub, VotesTendToTheSignOfTheMeanWithASharedMaximum) {
  for (const int world : {4, 5, 16}) {
    double before = 100;
    for (int bits = 2; bits <= 8; ++bits) {
      const double now = wrong_votes(scale("max", bits), world, of_unlike_ranks).share;
      EXPECT_LT(now, before) << bits << " bits, N=" << world;
      before = now;
    }
    EXPECT_LT(before, 1) << "N=" << world;
    EXPECT_GT(wrong_votes({{"bits", "1"}}, world, of_unlike_ranks).share, 5 * before);
  }
}

// A rank's own scale makes a vote of relative magnitudes: ranks whose gradients are larger have no
// more weight, so more bits do not lead to the sign of the mean.
TEST(LionCub, OwnScalesAreAnotherLimit) {
  const double own = wrong_votes(scale("max", 8, "no"), 4, of_unlike_ranks).share;
  EXPECT_GT(own, 5 * wrong_votes(scale("max", 8), 4, of_unlike_ranks).share);
}

// --- Of 8 ranks with nothing in common: the table in docs/methods/lion-cub.md. ------------------

constexpr int kWorld = 8;

// Uniform in (0, 1).
double uniform(std::uint64_t key, int rank, std::size_t i) {
  const std::uint64_t bits = mix64(mix64(key, static_cast<std::uint64_t>(rank)), i);
  return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;
}

double gaussian(int rank, std::size_t i) {
  constexpr double kTwoPi = 6.283185307179586;
  return std::sqrt(-2 * std::log(uniform(1, rank, i))) * std::cos(kTwoPi * uniform(2, rank, i));
}

double laplace(int rank, std::size_t i) {
  const double u = uniform(1, rank, i) - 0.5;
  return std::copysign(std::log(1 - 2 * std::fabs(u)), u);
}

// The sizes of the rows are log-normal, the same on all ranks.
double unlike_rows(int rank, std::size_t i) {
  return gaussian(rank, i) * std::exp(gaussian(kWorld, i / (kCoords / kRows)));
}

// Each value once.
Gradient kept(double (*value)(int, std::size_t)) {
  std::vector<double> values;
  for (int r = 0; r < kWorld; ++r) {
    for (std::size_t i = 0; i < kCoords; ++i) values.push_back(value(r, i));
  }
  return [values](int rank, std::size_t i) {
    return values[static_cast<std::size_t>(rank) * kCoords + i];
  };
}

// The nine numbers of the page's row "| blends | scale | ...": wrong shares of 2 to 8 bits, then
// what 4 and 8 bits lose.
std::array<double, 9> row_of_page(const std::string& blends, const std::string& name) {
  std::ifstream page(std::string(PRIDE_DOCS_DIR) + "/methods/lion-cub.md");
  const std::string key = "| " + blends + " | " + name + " |";
  std::array<double, 9> numbers{};
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with(key)) continue;
    std::istringstream cells(line.substr(key.size()));
    char bar = 0;
    for (double& number : numbers) cells >> number >> bar;
    EXPECT_TRUE(cells && bar == '|') << line;
    return numbers;
  }
  ADD_FAILURE() << "docs/methods/lion-cub.md has no row " << key;
  return numbers;
}

// The page rounds to a tenth and a hundredth; a few coordinates are the C library's.
constexpr double kShareRounding = 0.05 + 0.01, kLossRounding = 0.005 + 0.001;

class LionCubScales : public ::testing::TestWithParam<std::string> {
 protected:
  Gradient gradient() const {
    if (GetParam() == "Gaussian") return kept(gaussian);
    return kept(GetParam() == "Laplace" ? laplace : unlike_rows);
  }
};

TEST_P(LionCubScales, AreWrongWhereThePageSaysSo) {
  const Gradient gradient = this->gradient();
  const Wrong signs = wrong_votes({{"bits", "1"}}, kWorld, gradient);
  EXPECT_NEAR(signs.share, 23, 2.5);
  EXPECT_NEAR(signs.lost, 13, 2.5);
  for (const std::string name : {"l0", "l1", "l2", "max"}) {
    const auto page = row_of_page(GetParam(), "`" + name + "`");
    std::array<Wrong, 9> by_bits;
    std::ostringstream row;
    for (int bits = 2; bits <= 8; ++bits) {
      by_bits[static_cast<std::size_t>(bits)] = wrong_votes(scale(name, bits), kWorld, gradient);
      row << by_bits[static_cast<std::size_t>(bits)].share << ' ';
    }
    row << by_bits[4].lost << ' ' << by_bits[8].lost;
    SCOPED_TRACE(name + ": " + row.str());
    for (std::size_t bits = 2; bits <= 8; ++bits) {
      EXPECT_NEAR(page[bits - 2], by_bits[bits].share, kShareRounding) << bits << " bits";
    }
    EXPECT_NEAR(page[7], by_bits[4].lost, kLossRounding);
    EXPECT_NEAR(page[8], by_bits[8].lost, kLossRounding);
    // rounding halves with each bit, saturation stays
    const bool saturates = name == "l0" || name == "l1";
    const double last = by_bits[8].share / by_bits[7].share;
    EXPECT_GT(last, saturates ? 0.9 : 0) << "saturation does not stay";
    EXPECT_LT(last, name == "max" ? 0.65 : 1.01) << "rounding does not halve";
  }
}

INSTANTIATE_TEST_SUITE_P(Blends, LionCubScales,
                         ::testing::Values("Gaussian", "Laplace", "unlike rows"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, ' ');
                           return name;
                         });

}  // namespace
}  // namespace pride::lion_cub_scale_test
