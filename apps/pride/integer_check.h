// Check of a flag's text: a decimal integer that fits its type (CLI11 alone wraps or saturates).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <concepts>
#include <limits>
#include <string>

#include "pride/error.h"

namespace pride::app {

// Accepts integers from `lowest` up to `highest`.
template <typename T>
CLI::Validator integer_check(T lowest, T highest = std::numeric_limits<T>::max()) {
  const auto refusal = [lowest, highest](const std::string& text) -> std::string {
    T value = 0;
    const char* end = text.data() + text.size();
    const auto [last, error] = std::from_chars(text.data(), end, value);
    const bool whole = error == std::errc() && last == end;
    if (whole && value >= lowest && value <= highest) return "";
    return concat(text, " is not an integer from ", lowest, " to ", highest);
  };
  // an empty description leaves the help text as it is
  return CLI::Validator(refusal, "");
}

// A flag for an integer from `lowest` to `highest`, or for several, separated by commas.
template <typename T, typename Limit>
CLI::Option* add_integers(CLI::App& command, const char* flag, T& value, const std::string& help,
                          Limit lowest, Limit highest = std::numeric_limits<Limit>::max()) {
  CLI::Option* option = command.add_option(flag, value, help)->capture_default_str();
  if constexpr (!std::integral<T>) option->delimiter(',');
  return option->check(integer_check<Limit>(lowest, highest));
}

}  // namespace pride::app
