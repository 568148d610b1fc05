// Reading and writing numbers with units.
// SPDX-License-Identifier: Apache-2.0
#include "program/units.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <span>
#include <string_view>
#include <utility>

#include "pride/error.h"

namespace pride::inline program {
namespace {

struct Unit {
  const char* name;
  double factor;
};

constexpr std::array kPrefixes = {Unit{"", 1},        Unit{"k", 1e3},     Unit{"M", 1e6},
                                  Unit{"G", 1e9},     Unit{"T", 1e12},    Unit{"K", 1e3},
                                  Unit{"m", 1e6},     Unit{"g", 1e9},     Unit{"t", 1e12},
                                  Unit{"Ki", 0x1p10}, Unit{"Mi", 0x1p20}, Unit{"Gi", 0x1p30}};
constexpr std::array kSizes = {Unit{"bits", 1.0 / 8}, Unit{"bit", 1.0 / 8}, Unit{"b", 1.0 / 8},
                               Unit{"B", 1}};
constexpr std::array kTimes = {Unit{"ns", 1e-9}, Unit{"us", 1e-6}, Unit{"\u00B5s", 1e-6},
                               Unit{"ms", 1e-3}, Unit{"s", 1},     Unit{"min", 60}};

// The number of a text and its unit, with or without a blank between them.
std::pair<double, std::string_view> split(const std::string& text) {
  double number = NAN;
  const char* end = text.data() + text.size();
  const char* rest = std::from_chars(text.data(), end, number).ptr;
  if (rest != end && *rest == ' ') ++rest;
  return {number, {rest, end}};
}

double factor_of(std::string_view unit, std::span<const Unit> units) {
  const auto found = std::ranges::find(units, unit, &Unit::name);
  return found == units.end() ? NAN : found->factor;
}

// Bytes in one "Gbit", "MB", "KiB".
double bytes_in(std::string_view unit) {
  for (const auto& [name, factor] : kSizes) {
    if (!unit.ends_with(name)) continue;
    return factor *
           factor_of(unit.substr(0, unit.size() - std::string_view(name).size()), kPrefixes);
  }
  return NAN;
}

}  // namespace

double parse_rate(const std::string& text) {
  auto [number, unit] = split(text);
  if (unit.ends_with("/s") || unit.ends_with("ps")) unit.remove_suffix(2);
  const double rate = number * bytes_in(unit);
  PRIDE_CHECK(
      std::isfinite(rate), "'", text,
      "' is not a rate: give a number with a unit, such as 1Gbit/s, 1Gbps, 100Mbit or 12.5MB/s");
  PRIDE_CHECK(rate > 0, "'", text, "' is not a rate: must be above 0");
  return rate;
}

double parse_time(const std::string& text) {
  const auto [number, unit] = split(text);
  const double seconds = number * factor_of(unit, kTimes);
  PRIDE_CHECK(std::isfinite(seconds), "'", text,
              "' is not a time: give a number with one of ns, us, ms, s, min");
  PRIDE_CHECK(seconds >= 0, "'", text, "' is not a time: must not be negative");
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
    std::snprintf(text, sizeof text, seconds < 100 || seconds >= 1e7 ? "%.3g s" : "%.0f s",
                  seconds);
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

}  // namespace pride::inline program
