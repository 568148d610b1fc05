// The search for a learning rate, on made-up losses with a known best rate.
// SPDX-License-Identifier: Apache-2.0
#include "compare/rate_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "pride/error.h"

namespace pride::app {
namespace {

// lowest at `best`, and the steeper the further away
std::function<double(double)> bowl(double best) {
  return [best](double rate) { return std::abs(std::log(rate / best)); };
}

std::vector<double> rates(const std::vector<Trial>& trials) {
  std::vector<double> tried;
  for (const Trial& trial : trials) tried.push_back(trial.rate);
  return tried;
}

TEST(RateGrid, HoldsTheNumbersThatAUserWouldType) {
  EXPECT_EQ(grid_rate(0), 1);
  EXPECT_EQ(grid_rate(1), 3);
  EXPECT_EQ(grid_rate(2), 10);
  EXPECT_EQ(grid_rate(-1), 0.3);
  EXPECT_EQ(grid_rate(-2), 0.1);
  EXPECT_EQ(grid_rate(-6), 1e-3);
  EXPECT_EQ(grid_rate(-7), 3e-4);
  EXPECT_EQ(grid_rate(-8), 1e-4);
}

TEST(RateGrid, KnowsTheNearestPoint) {
  for (int k = -20; k <= 6; ++k) EXPECT_EQ(nearest_grid_point(grid_rate(k)), k);
  EXPECT_EQ(nearest_grid_point(2e-3), -5);
  EXPECT_EQ(nearest_grid_point(1.2e-3), -6);
  EXPECT_EQ(nearest_grid_point(0.9), 0);
  EXPECT_THROW(nearest_grid_point(0), InvalidArgument);
}

TEST(RateSearch, EndsWithBothNeighboursOfTheBestTried) {
  for (int best = -10; best <= 0; ++best) {
    for (int start = -10; start <= 0; ++start) {
      const auto trials = search_rate(start, bowl(grid_rate(best)));
      ASSERT_NE(best_trial(trials), nullptr);
      EXPECT_EQ(best_trial(trials)->point, best) << "from " << start;
      for (const int point : {best - 1, best + 1}) {
        EXPECT_TRUE(std::ranges::any_of(trials, [&](const Trial& t) { return t.point == point; }));
      }
      // no rate twice, and none further than the neighbour beyond the best
      EXPECT_LE(trials.size(), static_cast<std::size_t>(std::abs(best - start)) + 3);
    }
  }
}

TEST(RateSearch, TriesTheLowerNeighbourFirst) {
  EXPECT_EQ(rates(search_rate(-7, bowl(3e-4))), (std::vector<double>{3e-4, 1e-4, 1e-3}));
  EXPECT_EQ(rates(search_rate(-7, bowl(1e-3))), (std::vector<double>{3e-4, 1e-4, 1e-3, 3e-3}));
}

TEST(RateSearch, GoesDownFromWhereEverythingDiverges) {
  const auto loss = [](double rate) { return rate > 2e-3 ? NAN : bowl(1e-4)(rate); };
  const auto trials = search_rate(-2, loss);
  EXPECT_TRUE(std::isinf(trials.front().loss));
  ASSERT_NE(best_trial(trials), nullptr);
  EXPECT_EQ(best_trial(trials)->rate, 1e-4);
}

TEST(RateSearch, CountsADivergedNeighbourAsWorse) {
  const auto loss = [](double rate) { return rate > 2e-3 ? INFINITY : 1 / rate; };
  const auto trials = search_rate(-7, loss);
  EXPECT_EQ(best_trial(trials)->rate, 1e-3);
  EXPECT_EQ(trials.back().rate, 3e-3);
}

TEST(RateSearch, GivesUpWhenNothingWorks) {
  const auto trials = search_rate(-2, [](double) { return NAN; });
  EXPECT_EQ(trials.size(), 5U);
  EXPECT_EQ(best_trial(trials), nullptr);
}

TEST(RateSearch, EndsOnAPlateau) {
  const auto trials = search_rate(-7, [](double) { return 2.5; });
  EXPECT_EQ(rates(trials), (std::vector<double>{3e-4, 1e-4, 1e-3})) << "equal is not better";
  ASSERT_NE(best_trial(trials), nullptr);
  EXPECT_EQ(best_trial(trials)->rate, 3e-4) << "of equal ones the first tried";
}

TEST(RateSearch, EndsWhereLossesFallForEver) {
  int calls = 0;
  const auto falling = [&calls](double) { return calls < 1000 ? -(++calls) : NAN; };
  const auto trials = search_rate(-7, falling);
  EXPECT_EQ(trials.size(), 20U);
  ASSERT_NE(best_trial(trials), nullptr);
  EXPECT_EQ(best_trial(trials)->rate, trials.back().rate);
}

TEST(RateText, IsShortAndReadsBack) {
  EXPECT_EQ(rate_text(3e-4), "3e-4");
  EXPECT_EQ(rate_text(1e-3), "1e-3");
  EXPECT_EQ(rate_text(2.5e-10), "2.5e-10");
  EXPECT_EQ(rate_text(0.03), "0.03");
  EXPECT_EQ(rate_text(1), "1");
  EXPECT_EQ(rate_text(0), "0");
  EXPECT_EQ(rate_text(1e30), "1e30");
  for (const double rate : {1.0 / 3, 1e-3 / 7, 12345.678}) {
    EXPECT_EQ(std::stod(rate_text(rate)), rate);
  }
}

}  // namespace
}  // namespace pride::app
