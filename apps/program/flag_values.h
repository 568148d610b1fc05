// Reads the values of flags for all commands: numbers with limits, units, times, rates.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "pride/error.h"
#include "program/settings.h"

namespace pride::inline program {

// Limits of a number, both included; limits beyond an integer type's are replaced by the type's.
struct Limits {
  double lowest = -std::numeric_limits<double>::infinity();
  double highest = std::numeric_limits<double>::infinity();
};

// The digits of a count in everyday notation, "1e7", "2.5M" or "10k" (powers of ten); with `bytes`
// also "64kB", "100MB" and "1MiB". Returns other texts unchanged.
std::string digits_of_count(const std::string& text, bool bytes = false);

// "" if `text` is a number within the limits that a double can hold; otherwise the reason. (strtod
// alone makes 1e-400 zero.)
std::string wrong_number(const std::string& text, Limits limits = {});

// Replaces `text` by the digits of its integer, or returns why T cannot hold it (CLI11 wraps it).
template <typename T>
std::string read_integer(std::string& text, Limits limits, bool bytes = false) {
  using Of = std::numeric_limits<T>;
  const T lowest = limits.lowest <= static_cast<double>(Of::lowest())
                       ? Of::lowest()
                       : static_cast<T>(limits.lowest);
  const T highest =
      limits.highest >= static_cast<double>(Of::max()) ? Of::max() : static_cast<T>(limits.highest);
  const std::string digits = digits_of_count(text, bytes);
  T value = 0;
  const char* end = digits.data() + digits.size();
  const auto [last, error] = std::from_chars(digits.data(), end, value);
  if (error != std::errc() || last != end || value < lowest || value > highest) {
    return concat(text, " is not an integer from ", lowest, " to ", highest);
  }
  text = digits;
  return "";
}

// Reader and check of a number of type T for CLI::Option::transform.
template <typename T>
CLI::Validator number_reader(Limits limits = {}, bool bytes = false) {
  // an empty description leaves the help text as it is
  if constexpr (std::is_integral_v<T>) {
    return {[=](std::string& text) { return read_integer<T>(text, limits, bytes); }, ""};
  } else {
    const bool bounded = limits.lowest > 0 && limits.highest < std::numeric_limits<T>::max();
    return {[=](std::string& text) { return wrong_number(text, limits); },
            bounded ? concat("in [", limits.lowest, " - ", limits.highest, "]") : ""};
  }
}

// A check that refuses the texts for which `parse` (parse_rate, parse_time) throws InvalidArgument.
CLI::Validator unit_check(double (*parse)(const std::string&));

// The type of the number in a plain, optional or listed value.
template <typename T>
struct NumberIn {
  using type = T;
};
template <typename T>
struct NumberIn<std::optional<T>> : NumberIn<T> {};
template <typename T>
struct NumberIn<std::vector<T>> : NumberIn<T> {};

// All flags of a command, given or not, except those in which ranks may differ: paths of data,
// output of results, the job's composition and its time-outs.
Settings settings_of(const CLI::App& command);

// A flag with a value. Numbers are checked against the limits, lists are separated by commas, and
// the help shows a default that is neither an empty text nor an std::nullopt.
template <typename T>
CLI::Option* add_value(CLI::App& command, const std::string& flag, T& value,
                       const std::string& help, Limits limits = {}) {
  using Number = typename NumberIn<T>::type;
  CLI::Option* option = command.add_option(flag, value, help);
  if constexpr (std::is_arithmetic_v<Number>) option->transform(number_reader<Number>(limits));
  if constexpr (std::is_same_v<T, std::vector<Number>>) option->delimiter(',');
  if constexpr (requires { value.empty(); }) {
    if (value.empty()) return option;
  }
  return std::is_same_v<T, std::optional<Number>> ? option : option->capture_default_str();
}

}  // namespace pride::inline program
