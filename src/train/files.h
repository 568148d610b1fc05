// Small files: written whole or not at all, JSON read back, and where a task's data lies.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace pride::train {

// Writes beside `file` and renames over it. Throws DataError.
void write_file(const std::filesystem::path& file, std::string_view text);

// Throws DataError beginning with `place` if the text is not JSON, or an object has a key twice.
nlohmann::json parse_json(std::string_view text, const std::string& place);

// The same of a file; throws DataError, naming the file, if it is missing, too.
nlohmann::json read_json(const std::filesystem::path& file);

// Regular files anywhere below a folder, in any order. Throws DataError.
std::vector<std::filesystem::path> files_below(const std::filesystem::path& folder);

// `flag`, or $PRIDE_DATA if the flag is empty. Throws DataError, naming the task and the `files` of
// such a folder, if neither is set; InvalidArgument if $PRIDE_DATA is no UTF-8. Does not look
// whether the path exists.
std::filesystem::path find_data(const std::string& flag, const std::string& task,
                                const std::string& files);

// ".jpg" of "a.JPG": the last ending with its dot, A to Z made small; empty if there is none.
inline std::string ending_of(const std::filesystem::path& file) {
  std::string ending = file.extension().string();
  for (char& c : ending) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return ending;
}

}  // namespace pride::train
