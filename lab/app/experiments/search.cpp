// SPDX-License-Identifier: Apache-2.0
#include "experiments/search.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "pride/error.h"

namespace pride::app {
namespace {

constexpr std::size_t kMostFailures = 5;
constexpr int kReach = 20;  // points of a rate axis on each side; two per power of ten
constexpr const char* kRate = "lr";

// Point k of the grid of rates: 10^(k/2) for even k, 3 * 10^((k-1)/2) for odd k.
double grid_rate(int k) {
  const int half = ((k % 2) + 2) % 2;  // 0 or 1, of negative k too
  // through text, because 3 * 1e-4 is not exactly 3e-4
  return std::strtod(concat(half == 1 ? "3e" : "1e", (k - half) / 2).c_str(), nullptr);
}

int nearest_grid_point(double rate) {
  const auto distance = [rate](int k) { return std::abs(std::log(grid_rate(k) / rate)); };
  const int near = static_cast<int>(std::floor(2 * std::log10(rate)));
  int best = near - 1;
  for (int k = near; k <= near + 2; ++k) {
    if (distance(k) < distance(best)) best = k;
  }
  return best;
}

std::size_t middle_of(const std::vector<Axis>& axes) {
  std::size_t point = 0;
  for (const Axis& axis : axes) point = point * axis.values.size() + (axis.values.size() - 1) / 2;
  return point;
}

// The neighbours of a point in the order in which they are tried; `lower`: only those with a lower
// rate.
std::vector<std::size_t> neighbours(const std::vector<Axis>& axes, std::size_t point, bool lower) {
  std::vector<std::size_t> rates, others;
  std::size_t stride = 1;
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    const std::size_t n = axis->values.size(), place = point / stride % n;
    auto& found = axis->flag == kRate ? rates : others;
    if (place > 0) found.push_back(point - stride);
    if (place + 1 < n && !lower) found.push_back(point + stride);
    stride *= n;
  }
  if (!lower) rates.insert(rates.end(), others.begin(), others.end());
  return rates;
}

}  // namespace

std::vector<Point> combinations(const std::vector<Axis>& axes) {
  std::vector<Point> points = {{}};
  for (const Axis& axis : axes) {
    std::vector<Point> longer;
    for (const Point& point : points) {
      for (const std::string& value : axis.values) {
        longer.push_back(point);
        longer.back().emplace_back(axis.flag, value);
      }
    }
    points = std::move(longer);
  }
  return points;
}

const Trial* best_trial(std::span<const Trial> trials) {
  const Trial* best = nullptr;
  for (const Trial& trial : trials) {
    if (trial.loss && (best == nullptr || *trial.loss < *best->loss)) best = &trial;
  }
  return best;
}

std::optional<std::size_t> next_point(const std::vector<Axis>& axes,
                                      std::span<const Trial> trials) {
  if (trials.empty()) return middle_of(axes);
  const Trial* best = best_trial(trials);
  if (trials.size() >= (best == nullptr ? kMostFailures : kMostTrials)) return std::nullopt;
  const bool failed = best == nullptr;
  for (const std::size_t point :
       neighbours(axes, failed ? trials.back().point : best->point, failed)) {
    if (std::ranges::count(trials, point, &Trial::point) == 0) return point;
  }
  return std::nullopt;
}

Axis rate_axis(double rate) {
  PRIDE_CHECK(rate > 0 && std::isfinite(rate), "learning rate ", rate,
              ": the search needs a finite start above 0");
  const int middle = nearest_grid_point(rate);
  Axis axis{.flag = kRate, .values = {}};
  for (int k = middle - kReach; k <= middle + kReach; ++k) {
    axis.values.push_back(number_text(grid_rate(k)));
  }
  return axis;
}

std::string number_text(double number) {
  std::array<char, 64> text;
  const bool plain = number == 0 || (number >= 0.01 && number < 1000);
  const auto format = plain ? std::chars_format::fixed : std::chars_format::scientific;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number, format).ptr;
  std::string written(text.data(), end);
  // 3e-04 -> 3e-4
  const std::size_t e = written.find('e');
  if (e == std::string::npos) return written;
  const std::size_t digits = written.find_first_not_of("+-0", e + 1);
  const std::string sign = written[e + 1] == '-' ? "-" : "";
  return written.substr(0, e + 1) + sign +
         (digits == std::string::npos ? "0" : written.substr(digits));
}

std::optional<double> number_of(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  return text.empty() || *end != '\0' ? std::nullopt : std::optional(number);
}

const std::string* out_of_order(const std::vector<std::string>& texts) {
  double last = -INFINITY;
  for (const std::string& text : texts) {
    const auto number = number_of(text);
    if (!number || !(*number > last)) return &text;
    last = *number;
  }
  return nullptr;
}

}  // namespace pride::app
