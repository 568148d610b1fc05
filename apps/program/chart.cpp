// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "pride/error.h"
#include "program/chart.h"

namespace pride::inline program {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Series, name, color, x, y, spread)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ChartAxis, label, log2, min, max, ticks)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Chart, id, title, note, points, x, y, series)

namespace {

using PlainJson = nlohmann::json;

// Rounds to eight digits, an error below a hundredth of a pixel.
double rounded(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.8g", value);
  return std::strtod(text, nullptr);
}

void check_axis(const ChartAxis& axis) {
  if (!(axis.min < axis.max)) throw DataError(concat("axis '", axis.label, "': min >= max"));
  if (is_narrow(axis.min, axis.max)) {
    throw DataError(concat("axis '", axis.label, "': min and max are too close"));
  }
  if (axis.log2 && !(axis.min > 0)) throw DataError(concat("axis '", axis.label, "': min <= 0"));
}

}  // namespace

bool is_narrow(double low, double high) {
  // share of the larger value
  constexpr double kNarrow = 1e-9;
  return high - low <= kNarrow * std::max(std::abs(low), std::abs(high));
}

std::string json_of(const Chart& chart) {
  PlainJson head = chart;
  head.erase("series");
  for (const char* axis : {"x", "y"}) {
    for (const char* bound : {"min", "max"}) head[axis][bound] = rounded(head[axis][bound]);
  }
  std::string text = head.dump();
  text.back() = ',';
  text += "\"series\":[";
  for (Series s : chart.series) {
    for (std::vector<double>* values : {&s.x, &s.y, &s.spread}) {
      std::ranges::transform(*values, values->begin(), rounded);
    }
    text += concat(text.back() == '[' ? "\n" : ",\n", PlainJson(s).dump());
  }
  return text + "\n]}\n";
}

Chart chart_of(const std::string& json) {
  Chart chart;
  try {
    chart = PlainJson::parse(json).get<Chart>();
  } catch (const PlainJson::exception& error) {
    throw DataError(concat("not the numbers of a chart: ", error.what()));
  }
  check_axis(chart.x);
  check_axis(chart.y);
  if (chart.series.empty()) throw DataError("no series");
  for (const Series& s : chart.series) {
    const bool good = !s.x.empty() && s.x.size() == s.y.size() && s.color >= 0 &&
                      (s.spread.empty() || s.spread.size() == s.x.size());
    if (!good) throw DataError(concat("series '", s.name, "': x, y and spread differ in length"));
  }
  return chart;
}

}  // namespace pride::inline program
