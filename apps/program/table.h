// Tables for terminals and Markdown, and formats of their cells.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

namespace pride::inline program {

// True if this byte of UTF-8 begins a character.
inline bool begins_letter(char c) { return (static_cast<unsigned>(c) & 0xC0U) != 0x80U; }

// Columns on the screen: characters of UTF-8, not bytes.
std::size_t width_of(const std::string& text);

struct Spread {
  double mean = 0;
  double deviation = 0;  // of the sample (n - 1); 0 for one value
};

// REQUIRES: at least one value.
Spread spread_of(const std::vector<double>& values);

// "1.694 ± 0.017"; without the deviation if there is one value only.
std::string spread_text(const std::vector<double>& values);

// 1.25, 1 -> "1.2": `digits` digits after the point.
std::string decimals(double number, int digits);

// 1234567.4 -> "1,234,567"
std::string grouped(double number);

// Bytes against those of an fp32 ring all-reduce: "1", "1/31.9", "1.50"; "-" if the ring is free
// (one worker).
std::string ratio_text(double bytes, double ring);

// Bytes that a rank sends in one fp32 ring all-reduce of n values: 2 (N-1)/N 4n.
double fp32_ring_bytes(double n, int world);

// The cell filled with blanks to `width` columns of the screen; on its left side if `right`.
std::string padded(const std::string& cell, std::size_t width, bool right = false);

// One line per row of cells, padded to equal width; the first row is the head. Columns from
// `first_number` on are flush right.
std::string markdown_table(const std::vector<std::vector<std::string>>& rows,
                           std::size_t first_number);

// `word` quoted as one word for a POSIX shell; plain words do not change.
inline std::string shell_quoted(const std::string& word) {
  const bool plain = !word.empty() && std::ranges::all_of(word, [](unsigned char c) {
    return std::isalnum(c) ||
           std::string_view("-_=.,/:+").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? "'\\''" : std::string(1, c);
  return text + "'";
}

}  // namespace pride::inline program
