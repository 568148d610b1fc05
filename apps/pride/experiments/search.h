// The search of [tune] and `--tune` for the best point of a grid, and the grid of learning rates
// 1, 3, 10, 30, ...
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pride::app {

// A flag of `pride train` and the values that it takes in turn.
struct Axis {
  std::string flag;
  std::vector<std::string> values;
};

// Flags and values.
using Point = std::vector<std::pair<std::string, std::string>>;

inline bool has_rate(const Point& point) {
  return std::ranges::count(point, "lr", &Point::value_type::first) > 0;
}

// Every combination of the axes; the last one changes fastest.
std::vector<Point> combinations(const std::vector<Axis>& axes);

// A point that was tried, by its number in combinations(), and its loss; none: the run failed.
struct Trial {
  std::size_t point = 0;
  std::optional<double> loss = {};
};

// The trial with the lowest loss, of equal ones the first; null if all failed.
const Trial* best_trial(std::span<const Trial> trials);

inline constexpr std::size_t kMostTrials = 20;  // of a climb

// The point to try next, climbing from the middle of every axis (the lower of two): the neighbours
// of the best point so far, by one value on one axis, rates before other flags and lower values
// first, until none is left. An equal loss is not better. While all runs fail, the next lower rate
// is tried, five points at most. Nothing after kMostTrials points in any case.
std::optional<std::size_t> next_point(const std::vector<Axis>& axes, std::span<const Trial> trials);

// Rates 1, 3, 10, ... around the one next to `rate` in the logarithm, which is the middle: ten
// powers of ten each way. REQUIRES: rate > 0 and finite.
Axis rate_axis(double rate);

// "3e-4", "0.1": the shortest text that reads back as the same number.
std::string number_text(double number);

// The number that the text is, from its first letter to its last.
std::optional<double> number_of(const std::string& text);

// The first text that is no number, or not above the one before it; null: they ascend.
const std::string* out_of_order(const std::vector<std::string>& texts);

}  // namespace pride::app
