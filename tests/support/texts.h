// Texts of errors: the error that an action throws, and the parts that it must contain.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <string_view>

namespace pride::texts {

inline void expect_contains(const std::string& text, std::string_view part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
}

inline void expect_contains(const std::string& text,
                            std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts) expect_contains(text, part);
}

// The text of the E that `action` throws; "" if it throws none.
template <typename E, typename Action>
std::string error_of(const Action& action) {
  try {
    action();
  } catch (const E& e) {
    return e.what();
  }
  return "";
}

// Runs `action`, which must throw E with every given part in its text.
template <typename E, typename Action>
void expect_error(const Action& action, std::initializer_list<std::string_view> parts) {
  try {
    action();
    ADD_FAILURE() << "nothing was thrown; expected a text with \"" << *parts.begin() << "\"";
  } catch (const E& e) {
    expect_contains(e.what(), parts);
  }
}

}  // namespace pride::texts
