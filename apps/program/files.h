// Small files: atomic writes, reading JSON, lists of folders.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace pride::inline program {

// Writes beside `file` and renames over it. Throws DataError.
void write_file(const std::filesystem::path& file, std::string_view text);

// Throws DataError beginning with `place` if the text is not JSON, or an object has a key twice.
nlohmann::json parse_json(std::string_view text, const std::string& place);

// The same for a file. Throws DataError, naming the file, also if it is missing.
nlohmann::json read_json(const std::filesystem::path& file);

// Regular files anywhere below a folder, in any order. Throws DataError.
std::vector<std::filesystem::path> files_below(const std::filesystem::path& folder);

// The entries of a folder, in order. Throws DataError.
std::vector<std::filesystem::path> entries_in(const std::filesystem::path& folder);

// Calls `take` with each line, without its '\n', and its number from 1 on.
template <typename Take>
void for_each_line(std::string_view text, const Take& take) {
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    take(line, number);
  }
}

// ".jpg" for "a.JPG": the last ending with its dot, in lower case; empty: there is none.
inline std::string ending_of(const std::filesystem::path& file) {
  std::string ending = file.extension().string();
  for (char& c : ending) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return ending;
}

}  // namespace pride::inline program
