// Questions made up by rule, written as JSON lines.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "pride/error.h"
#include "train_names.h"

namespace pride::app::test {

inline std::string record(const std::string& query, const std::vector<std::string>& choices,
                          std::size_t gold) {
  return nlohmann::ordered_json{{"query", query}, {"choices", choices}, {"gold", gold}}.dump() +
         "\n";
}

// `n` questions of several lengths, whose answers are of several lengths too.
inline std::string records(int n, const std::string& word = "lion") {
  const std::vector<std::string> choices = {"red", "a dark green one", "blue as the sea", "no"};
  std::string text;
  for (int i = 0; i < n; ++i) {
    std::string query = concat("Question: what is the colour of ", word, " number ", i);
    for (int k = 0; k < i % 5; ++k) query += " of the pride";
    const auto used = static_cast<std::ptrdiff_t>(2 + i % 3);
    text += record(query + "?", {choices.begin(), choices.begin() + used},
                   static_cast<std::size_t>(i * 7 % used));
  }
  return text;
}

}  // namespace pride::app::test
