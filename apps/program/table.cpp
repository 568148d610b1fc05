// SPDX-License-Identifier: Apache-2.0
#include "program/table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "pride/error.h"

namespace pride::inline program {

constexpr double kSameBytes = 0.02;  // frames and padding differ by less

std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, begins_letter));
}

Spread spread_of(const std::vector<double>& values) {
  PRIDE_CHECK(!values.empty(), "spread of no values");
  const auto n = static_cast<double>(values.size());
  Spread spread;
  for (const double value : values) spread.mean += value / n;
  if (values.size() == 1) return {values.front(), 0};
  double squares = 0;
  for (const double value : values) squares += (value - spread.mean) * (value - spread.mean);
  spread.deviation = std::sqrt(squares / (n - 1));
  return spread;
}

std::string spread_text(const std::vector<double>& values) {
  const Spread spread = spread_of(values);
  const std::string mean = decimals(spread.mean, 3);
  return values.size() == 1 ? mean : mean + " ± " + decimals(spread.deviation, 3);
}

std::string decimals(double number, int digits) {
  std::array<char, 400> text;
  std::snprintf(text.data(), text.size(), "%.*f", digits, number);
  return text.data();
}

std::string grouped(double number) {
  std::string text = decimals(number, 0);
  const std::size_t sign = text.front() == '-' ? 1 : 0;
  for (std::size_t at = text.size(); at > 3 + sign; text.insert(at, ",")) at -= 3;
  return text;
}

std::string ratio_text(double bytes, double ring) {
  if (ring <= 0) return "-";
  if (std::abs(bytes / ring - 1) < kSameBytes) return "1";
  return bytes < ring && bytes > 0 ? "1/" + decimals(ring / bytes, 1) : decimals(bytes / ring, 2);
}

double fp32_ring_bytes(double n, int world) { return 2.0 * (world - 1) / world * 4 * n; }

std::string padded(const std::string& cell, std::size_t width, bool right) {
  const std::string blanks(width - std::min(width, width_of(cell)), ' ');
  return right ? blanks + cell : cell + blanks;
}

std::string markdown_table(const std::vector<std::vector<std::string>>& rows,
                           std::size_t first_number) {
  std::vector<std::size_t> widths(rows.front().size(), 3);
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width_of(row[c]));
  }
  std::string text;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::size_t c = 0; c < rows[r].size(); ++c) {
      text += "| " + padded(rows[r][c], widths[c], c >= first_number) + " ";
    }
    text += "|\n";
    if (r > 0) continue;
    for (std::size_t c = 0; c < widths.size(); ++c) {
      text += "|-" + std::string(widths[c], '-') + (c >= first_number ? ":" : "-");
    }
    text += "|\n";
  }
  return text;
}

}  // namespace pride::inline program
