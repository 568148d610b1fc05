// SPDX-License-Identifier: Apache-2.0
#include "program/suggestion.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "pride/error.h"

namespace pride::inline program {
namespace {

// Letters to add, drop or replace to make one word of the other.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string suggestion(const std::string& word, const std::vector<std::string>& known) {
  const auto from_word = [&](const std::string& name) { return distance(word, name); };
  const auto nearest = std::ranges::min_element(known, {}, from_word);
  if (nearest == known.end() || from_word(*nearest) > 1 + word.size() / 4) return "";
  return concat("; did you mean ", *nearest, "?");
}

}  // namespace pride::inline program
