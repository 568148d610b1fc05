// SPDX-License-Identifier: Apache-2.0
#include "program/utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "pride/error.h"

namespace pride::inline program {
namespace {

struct Lead {
  std::size_t length = 0;                       // of the character; 0: none begins with this byte
  unsigned char lowest = 0x80, highest = 0xBF;  // of the second byte
};

// what the first byte determines: no overlong forms, no surrogates, nothing above U+10FFFF
Lead lead_of(unsigned char first) noexcept {
  if (first < 0x80) return {1};
  if (first >= 0xC2 && first <= 0xDF) return {2};
  if (first == 0xE0) return {3, 0xA0, 0xBF};
  if (first == 0xED) return {3, 0x80, 0x9F};
  if (first >= 0xE1 && first <= 0xEF) return {3};
  if (first == 0xF0) return {4, 0x90, 0xBF};
  if (first >= 0xF1 && first <= 0xF3) return {4};
  if (first == 0xF4) return {4, 0x80, 0x8F};
  return {};
}

// Bytes of `text` that fit the character begun by its first byte.
std::size_t fitting(std::string_view text, const Lead& lead) noexcept {
  std::size_t n = 1;
  for (; n < std::min(lead.length, text.size()); ++n) {
    const auto byte = static_cast<unsigned char>(text[n]);
    const bool fits = n == 1 ? byte >= lead.lowest && byte <= lead.highest : (byte & 0xC0) == 0x80;
    if (!fits) break;
  }
  return n;
}

}  // namespace

std::size_t utf8_character(std::string_view text) noexcept {
  if (text.empty()) return 0;
  const Lead lead = lead_of(static_cast<unsigned char>(text[0]));
  return lead.length != 0 && fitting(text, lead) == lead.length ? lead.length : 0;
}

std::size_t utf8_prefix(std::string_view text) noexcept {
  std::size_t at = 0;
  while (at < text.size()) {
    // eight bytes of ASCII at a time
    std::uint64_t eight = 0;
    if (text.size() - at >= sizeof eight) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080u) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    const std::size_t n = utf8_character(text.substr(at));
    if (n == 0) break;
    at += n;
  }
  return at;
}

std::size_t utf8_unfinished(std::string_view text) noexcept {
  for (std::size_t n = 1; n <= std::min<std::size_t>(3, text.size()); ++n) {
    const std::string_view tail = text.substr(text.size() - n);
    const Lead lead = lead_of(static_cast<unsigned char>(tail[0]));
    if (lead.length > n && fitting(tail, lead) == n) return n;
  }
  return 0;
}

bool is_utf8(std::string_view text) noexcept { return utf8_prefix(text) == text.size(); }

void check_utf8(std::string_view what, std::string_view name) {
  PRIDE_CHECK(is_utf8(name), what, " ", name, ": not UTF-8, as names in records of runs must be");
}

std::string as_utf8(std::string_view text) {
  std::string valid;
  while (!text.empty()) {
    const std::size_t n = utf8_prefix(text);
    valid += text.substr(0, n);
    text.remove_prefix(n);
    if (text.empty()) break;
    valid += "\xEF\xBF\xBD";
    text.remove_prefix(1);
  }
  return valid;
}

}  // namespace pride::inline program
