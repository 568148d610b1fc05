// The search of [tune] on losses made up here; the cells of a comparison, and the table around
// them.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "experiments/search.h"
#include "program/table.h"
#include "train_names.h"

namespace pride::app {
namespace {

using Loss = std::function<std::optional<double>(const Point&)>;

double number(const Point& point, const std::string& flag) {
  for (const auto& [name, value] : point) {
    if (name == flag) return std::stod(value);
  }
  return 0;
}

struct Climb {
  std::vector<Point> tried = {};
  std::optional<Point> best = {};
};

Climb climb(const std::vector<Axis>& axes, const Loss& loss) {
  const std::vector<Point> points = combinations(axes);
  std::vector<Trial> trials;
  Climb result;
  while (const auto next = next_point(axes, trials)) {
    EXPECT_LT(*next, points.size());
    for (const Trial& trial : trials) EXPECT_NE(trial.point, *next) << "tried twice";
    trials.push_back({*next, loss(points[*next])});
    result.tried.push_back(points[*next]);
  }
  if (const Trial* best = best_trial(trials)) result.best = points[best->point];
  return result;
}

std::vector<double> rates(const Climb& climb) {
  std::vector<double> found;
  for (const Point& point : climb.tried) found.push_back(number(point, "lr"));
  return found;
}

// least at the rate
Loss bowl(double rate) {
  return [rate](const Point& p) { return std::abs(std::log(number(p, "lr") / rate)); };
}

TEST(Search, FindsTheLowestRateOfABowlFromAnywhere) {
  for (const double start : {1e-6, 3e-4, 2.0}) {
    for (const double lowest : {1e-4, 3e-4, 0.1}) {
      const Climb found = climb({rate_axis(start)}, bowl(lowest));
      ASSERT_TRUE(found.best);
      EXPECT_EQ(number(*found.best, "lr"), lowest) << start;
      const double steps = std::abs(2 * std::log10(lowest / start));
      EXPECT_LE(static_cast<double>(found.tried.size()), steps + 4) << "none beyond its neighbours";
    }
  }
}

TEST(Search, TriesTheLowerNeighbourFirst) {
  EXPECT_EQ(rates(climb({rate_axis(3e-4)}, bowl(3e-4))), (std::vector<double>{3e-4, 1e-4, 1e-3}));
  EXPECT_EQ(rates(climb({rate_axis(3e-4)}, bowl(1e-3))),
            (std::vector<double>{3e-4, 1e-4, 1e-3, 3e-3}));
}

TEST(Search, ClimbsOnTwoAxesRatesFirst) {
  const std::vector<Axis> axes = {{"beta2", {"0.9", "0.95", "0.98", "0.99"}},
                                  {"lr", {"1e-4", "1e-3", "1e-2"}}};
  const Climb found = climb(axes, [](const Point& p) {
    return std::abs(std::log10(number(p, "lr")) + 2) + std::abs(number(p, "beta2") - 0.98);
  });
  EXPECT_EQ(found.tried.front(), (Point{{"beta2", "0.95"}, {"lr", "1e-3"}})) << "the middle";
  EXPECT_EQ(found.tried[1], (Point{{"beta2", "0.95"}, {"lr", "1e-4"}}));
  EXPECT_EQ(found.best, (Point{{"beta2", "0.98"}, {"lr", "1e-2"}}));
  EXPECT_LE(found.tried.size(), 8U) << "of twelve";
}

TEST(Search, GoesDownFromWhereEverythingDiverges) {
  const Climb found = climb({rate_axis(0.1)}, [](const Point& p) {
    return number(p, "lr") > 2e-3 ? std::nullopt : bowl(1e-4)(p);
  });
  ASSERT_TRUE(found.best);
  EXPECT_EQ(number(*found.best, "lr"), 1e-4);
}

TEST(Search, CountsADivergedNeighbourAsWorse) {
  const Climb found = climb({rate_axis(3e-4)}, [](const Point& p) {
    return number(p, "lr") > 2e-3 ? std::nullopt : std::optional(1 / number(p, "lr"));
  });
  EXPECT_EQ(number(*found.best, "lr"), 1e-3);
  EXPECT_EQ(rates(found).back(), 3e-3);
}

TEST(Search, GivesUpWhenNothingWorks) {
  const Climb found = climb({rate_axis(0.1)}, [](const Point&) { return std::nullopt; });
  EXPECT_EQ(found.tried.size(), 5U);
  EXPECT_FALSE(found.best);
}

TEST(Search, EndsOnAPlateau) {
  const Climb found = climb({rate_axis(3e-4)}, [](const Point&) { return 2.5; });
  EXPECT_EQ(rates(found), (std::vector<double>{3e-4, 1e-4, 1e-3})) << "equal is not better";
  EXPECT_EQ(number(*found.best, "lr"), 3e-4) << "of equal ones the first tried";
}

TEST(Search, EndsWhereLossesFallForEver) {
  const Climb found = climb({rate_axis(1e-7)}, [](const Point& p) { return -number(p, "lr"); });
  EXPECT_EQ(found.tried.size(), 20U);
  EXPECT_EQ(number(*found.best, "lr"), rates(found).back());
}

TEST(Search, RatesAreWholeAndHalfDecades) {
  const Axis axis = rate_axis(2.5e-3);
  EXPECT_EQ(axis.values[(axis.values.size() - 1) / 2], "3e-3") << "the one next to it";
  for (std::size_t i = 1; i < axis.values.size(); ++i) {
    EXPECT_LT(std::stod(axis.values[i - 1]), std::stod(axis.values[i]));
  }
}

TEST(NumberText, IsShortAndReadsBack) {
  EXPECT_EQ(number_text(3e-4), "3e-4");
  EXPECT_EQ(number_text(1e-3), "1e-3");
  EXPECT_EQ(number_text(2.5e-10), "2.5e-10");
  EXPECT_EQ(number_text(0.03), "0.03");
  EXPECT_EQ(number_text(1), "1");
  EXPECT_EQ(number_text(0), "0");
  EXPECT_EQ(number_text(1e30), "1e30");
  for (const double rate : {1.0 / 3, 1e-3 / 7, 12345.678}) {
    EXPECT_EQ(std::stod(number_text(rate)), rate);
  }
}

TEST(Spread, IsThatOfASample) {
  const Spread spread = spread_of({1, 2, 3});
  EXPECT_DOUBLE_EQ(spread.mean, 2);
  EXPECT_DOUBLE_EQ(spread.deviation, 1);
  EXPECT_EQ(spread_text({1, 2, 3}), "2.000 ± 1.000");
  EXPECT_EQ(spread_text({1.23456}), "1.235");
}

TEST(Cells, GroupDigits) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999.4), "999");
  EXPECT_EQ(grouped(1234567), "1,234,567");
  EXPECT_EQ(grouped(-123456), "-123,456");
}

TEST(Cells, CompareWithARing) {
  EXPECT_EQ(fp32_ring_bytes(1000, 4), 6000);
  EXPECT_EQ(fp32_ring_bytes(1000, 1), 0);
  EXPECT_EQ(ratio_text(6000, 6000), "1");
  EXPECT_EQ(ratio_text(6050, 6000), "1") << "frames are not worth a ratio";
  EXPECT_EQ(ratio_text(187.5, 6000), "1/32.0");
  EXPECT_EQ(ratio_text(9000, 6000), "1.50");
  EXPECT_EQ(ratio_text(0, 6000), "0.00");
  EXPECT_EQ(ratio_text(0, 0), "-") << "one worker";
}

TEST(Table, IsMarkdownWithFlushColumns) {
  const std::string text =
      markdown_table({{"method", "loss"}, {"a", "1 ± 2"}, {"long name", "3"}}, 1);
  EXPECT_EQ(text,
            "| method    |  loss |\n"
            "|-----------|------:|\n"
            "| a         | 1 ± 2 |\n"
            "| long name |     3 |\n");
}

}  // namespace

}  // namespace pride::app
