// Small files of a run: written whole or not at all, and JSON read back.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace pride::train {

// Writes beside `file` and renames over it. Throws DataError.
void write_file(const std::filesystem::path& file, std::string_view text);

// Throws DataError beginning with `place` if the text is not JSON, or an object has a key twice.
nlohmann::json parse_json(std::string_view text, const std::string& place);

// The same of a file; throws DataError, naming the file, if it is missing, too.
nlohmann::json read_json(const std::filesystem::path& file);

}  // namespace pride::train
