// Reading and writing numbers with units.
// SPDX-License-Identifier: Apache-2.0
#include "plan/units.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <span>
#include <utility>

#include "pride/error.h"

namespace pride::app {
namespace {

using Unit = std::pair<const char*, double>;

constexpr std::array kRates = {Unit{"bit", 1.0 / 8},  Unit{"kbit", 1e3 / 8},  Unit{"Mbit", 1e6 / 8},
                               Unit{"Gbit", 1e9 / 8}, Unit{"Tbit", 1e12 / 8}, Unit{"B", 1},
                               Unit{"kB", 1e3},       Unit{"MB", 1e6},        Unit{"GB", 1e9}};
constexpr std::array kTimes = {Unit{"ns", 1e-9}, Unit{"us", 1e-6}, Unit{"ms", 1e-3}, Unit{"s", 1}};

double parse(const std::string& text, std::span<const Unit> units, const char* what) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc() && std::isfinite(number)) {
    const std::string unit(rest, end);
    for (const auto& [name, factor] : units) {
      if (unit == name && std::isfinite(number * factor)) return number * factor;
    }
  }
  std::string names;
  for (const auto& [name, factor] : units) names += concat(names.empty() ? "" : ", ", name);
  throw InvalidArgument(concat("'", text, "' is no ", what, ": a number with one of ", names));
}

}  // namespace

double parse_rate(const std::string& text) {
  const double rate = parse(text, kRates, "rate per second");
  PRIDE_CHECK(rate > 0, "'", text, "' is no rate: must be above 0");
  return rate;
}

double parse_time(const std::string& text) {
  const double seconds = parse(text, kTimes, "time");
  PRIDE_CHECK(seconds >= 0, "'", text, "' is no time: must not be negative");
  return seconds;
}

std::string time_text(double seconds) {
  char text[32];
  const double us = seconds * 1e6;
  if (us < 999.5) {
    std::snprintf(text, sizeof text, "%.3g us", us);
  } else if (us < 999500) {
    std::snprintf(text, sizeof text, us < 99950 ? "%.3g ms" : "%.0f ms", us / 1e3);
  } else {
    std::snprintf(text, sizeof text, seconds < 100 ? "%.3g s" : "%.0f s", seconds);
  }
  return text;
}

std::string bandwidth_text(double bytes_per_s) {
  const double bits = 8 * bytes_per_s;
  char text[32];
  std::snprintf(text, sizeof text, bits < 1e9 ? "%.1f Mbit/s" : "%.2f Gbit/s",
                bits < 1e9 ? bits / 1e6 : bits / 1e9);
  return text;
}

}  // namespace pride::app
