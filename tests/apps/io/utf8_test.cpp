// UTF-8: every code point against the encoding's definition, and ill-formed input.
// SPDX-License-Identifier: Apache-2.0
#include "program/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace pride::app {
namespace {

std::string utf8_of(std::uint32_t code) {
  std::string text;
  const auto tail = [&](int shift) { text += static_cast<char>(0x80 | (code >> shift & 63)); };
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  if (code < 0x800) {
    text += static_cast<char>(0xC0 | code >> 6);
  } else if (code < 0x10000) {
    text += static_cast<char>(0xE0 | code >> 12);
    tail(6);
  } else {
    text += static_cast<char>(0xF0 | code >> 18);
    tail(12);
    tail(6);
  }
  tail(0);
  return text;
}

TEST(Utf8, KnowsEveryCodePointAndNoSurrogate) {
  for (std::uint32_t code = 0; code < 0x120000; ++code) {
    const std::string text = utf8_of(code);
    const bool good = code < 0x110000 && (code < 0xD800 || code > 0xDFFF);
    ASSERT_EQ(utf8_character(text + "x"), good ? text.size() : 0) << code;
    for (std::size_t n = 1; good && n < text.size(); ++n) {
      ASSERT_EQ(utf8_unfinished("x" + text.substr(0, n)), n) << code;
      ASSERT_EQ(utf8_character(text.substr(0, n)), 0U) << code;
    }
    ASSERT_EQ(utf8_unfinished(text), 0U) << code;
  }
}

TEST(Utf8, RefusesLongerFormsThanNeeded) {
  for (const char* text :
       {"\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF", "\x80", "\xFF"}) {
    EXPECT_EQ(utf8_character(text), 0U);
    EXPECT_EQ(utf8_unfinished(text), 0U);
  }
}

TEST(Utf8, FindsTheLongestGoodBeginning) {
  EXPECT_EQ(utf8_prefix(""), 0U);
  EXPECT_EQ(utf8_prefix("0123456789abcdefgh"), 18U);
  EXPECT_EQ(utf8_prefix("0123456789abcdefg\xC3\xA9\xFFh"), 19U);
  EXPECT_EQ(utf8_prefix("\xE2\x82"), 0U);
}

TEST(Utf8, MarksEveryByteOfNoCharacter) {
  EXPECT_EQ(as_utf8(""), "");
  EXPECT_EQ(as_utf8("a\xC3\xA9"), "a\xC3\xA9");
  EXPECT_EQ(as_utf8("\xFF"
                    "a\xE2\x82z\xC3"),
            "\xEF\xBF\xBD"
            "a\xEF\xBF\xBD\xEF\xBF\xBDz\xEF\xBF\xBD");
  EXPECT_TRUE(is_utf8("a\xC3\xA9"));
  EXPECT_FALSE(is_utf8("a\xC3"));
}

}  // namespace
}  // namespace pride::app
