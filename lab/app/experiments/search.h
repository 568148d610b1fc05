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

// A flag of `pride train` and its alternative values.
struct Axis {
  std::string flag;
  std::vector<std::string> values;
};

// Flags, each with a value.
using Point = std::vector<std::pair<std::string, std::string>>;

inline bool has_rate(const Point& point) {
  return std::ranges::count(point, "lr", &Point::value_type::first) > 0;
}

// Every combination of the axes; the last one changes fastest.
std::vector<Point> combinations(const std::vector<Axis>& axes);

// A tried point, by its index in combinations(), and its loss; none: the run failed.
struct Trial {
  std::size_t point = 0;
  std::optional<double> loss = {};
};

// The first trial with the lowest loss; null if all failed.
const Trial* best_trial(std::span<const Trial> trials);

inline constexpr std::size_t kMostTrials = 20;  // points of a climb

// The next point of a climb. It starts in the middle of every axis (the lower of two middles). Then
// it tries the neighbours of the best point so far: one step on one axis, rates before other flags,
// lower values first. An equal loss is not better. While all runs fail, it tries the next lower
// rate, at most five points. Nothing if no neighbour is left, or after kMostTrials points.
std::optional<std::size_t> next_point(const std::vector<Axis>& axes, std::span<const Trial> trials);

// Rates 1, 3, 10, ... over ten powers of ten on each side of the middle, which is the nearest to
// `rate` in the logarithm. REQUIRES: rate > 0 and finite.
Axis rate_axis(double rate);

// "3e-4", "0.1": the shortest text that reads back as the same number.
std::string number_text(double number);

// The number, if the whole text is a number.
std::optional<double> number_of(const std::string& text);

// The first text that is not a number, or not above the text before it; null: they ascend.
const std::string* out_of_order(const std::vector<std::string>& texts);

}  // namespace pride::app
