// Check for number flags: a number that a double can hold (CLI11 alone makes 1e-400 zero).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/Validators.hpp>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <string>

#include "pride/error.h"

namespace pride::app {

// Accepts what strtod reads to the end without overflow or underflow; whether NaN and Inf make
// sense is for others to say.
inline CLI::Validator number_check() {
  const auto refusal = [](const std::string& text) -> std::string {
    errno = 0;
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    const int error = errno;
    if (text.empty() || *end != '\0') return concat("'", text, "' is not a number");
    if (error != ERANGE) return "";
    return concat(text, std::isinf(value) ? " is too large" : " is too small", " for a number");
  };
  // an empty description leaves the help text as it is
  return CLI::Validator(refusal, "");
}

}  // namespace pride::app
