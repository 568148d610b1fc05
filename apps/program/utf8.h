// Well-formed UTF-8, found byte by byte (Unicode standard, table 3-7).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace pride::inline program {

// Bytes of the well-formed character at the start of `text`; 0 if there is none.
std::size_t utf8_character(std::string_view text) noexcept;

// Bytes of the longest well-formed beginning of `text`.
std::size_t utf8_prefix(std::string_view text) noexcept;

// Bytes at the end of `text` that may be the beginning of a character whose rest is still to come.
std::size_t utf8_unfinished(std::string_view text) noexcept;

bool is_utf8(std::string_view text) noexcept;

// For names that go into a run's records, which are JSON. Throws InvalidArgument, beginning with
// `what` ("--out"), if the name is not UTF-8.
void check_utf8(std::string_view what, std::string_view name);

// The text with U+FFFD for every byte that is part of no well-formed character.
std::string as_utf8(std::string_view text);

}  // namespace pride::inline program
