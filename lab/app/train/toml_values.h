// Reads TOML files of settings, with values as on the command line.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

#include "experiments/search.h"
#include "pride/error.h"

namespace pride::app {

// Throws DataError, naming file and line, if it is not TOML.
inline toml::table parse_toml(std::string_view text, const std::string& file) {
  try {
    return toml::parse(text, file);
  } catch (const toml::parse_error& error) {
    throw DataError(
        concat(file, ":", error.source().begin.line, ": not TOML: ", error.description()));
  }
}

// The value as on the command line; none for a table, a list or a date.
inline std::optional<std::string> toml_text(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* number = node.as_floating_point()) return number_text(number->get());
  if (const auto* truth = node.as_boolean()) return truth->get() ? "true" : "false";
  return std::nullopt;
}

}  // namespace pride::app
