// Compiled kernels kept in a folder, one file for each key.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace pride::cuda {

// PRIDE_CACHE, or the folder pride in XDG_CACHE_HOME or ~/.cache; empty: none of them is set.
std::filesystem::path cache_folder();

std::filesystem::path cache_file(const std::filesystem::path& folder, std::uint64_t key);

// Null: the file is not there, is damaged, or belongs to another key.
std::optional<std::string> read_cached(const std::filesystem::path& folder, std::uint64_t key);

// Creates the folder; other processes see the whole file or none. Returns why it could not be
// written, or "".
std::string write_cached(const std::filesystem::path& folder, std::uint64_t key,
                         const std::string& image);

}  // namespace pride::cuda
