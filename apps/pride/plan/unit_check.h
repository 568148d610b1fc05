// Check for flags that are numbers with a unit, so that a slip is told with the flag's name.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/Validators.hpp>
#include <string>

#include "pride/error.h"

namespace pride::app {

// Accepts what `parse` (parse_rate, parse_time) does not throw InvalidArgument for.
inline CLI::Validator unit_check(double (*parse)(const std::string&)) {
  const auto refusal = [parse](const std::string& text) -> std::string {
    try {
      parse(text);
      return "";
    } catch (const InvalidArgument& error) {
      return error.what();
    }
  };
  // an empty description leaves the help text as it is
  return CLI::Validator(refusal, "");
}

}  // namespace pride::app
