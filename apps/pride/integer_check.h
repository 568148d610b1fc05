// Check of a flag's text: a decimal integer that fits its type (CLI11 alone wraps or saturates).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/Validators.hpp>
#include <charconv>
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

}  // namespace pride::app
