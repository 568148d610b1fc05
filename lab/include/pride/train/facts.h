// Facts: ordered, named values with which data, models and evaluations describe themselves.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace pride::train {

using FactValue = std::variant<std::int64_t, double, std::string, std::vector<std::string>>;
using Facts = std::vector<std::pair<std::string, FactValue>>;

// The value of that name as a number; `otherwise` if it is missing or not a number.
inline double number_of(const Facts& facts, const std::string& name, double otherwise = 0) {
  for (const auto& [key, value] : facts) {
    if (key != name) continue;
    if (const auto* n = std::get_if<std::int64_t>(&value)) return static_cast<double>(*n);
    if (const auto* x = std::get_if<double>(&value)) return *x;
  }
  return otherwise;
}

inline bool has_fact(const Facts& facts, const std::string& name) {
  for (const auto& fact : facts) {
    if (fact.first == name) return true;
  }
  return false;
}

}  // namespace pride::train
