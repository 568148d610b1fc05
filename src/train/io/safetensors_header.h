// The header of a safetensors file, parsed and checked; the reader's first half.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace pride::train {

// A longer header is refused, as by the format's own library.
inline constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;

struct SafetensorsEntry {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t n = 0;               // product of the shape
  std::uint64_t begin = 0, end = 0;  // bytes from the start of the data
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in order of their data
  std::map<std::string, std::string> metadata;
  std::uint64_t data_begin = 0;  // bytes from the start of the file
};

// Bytes of one element; 0 if the dtype is not one that pride reads.
std::size_t safetensors_item_size(const std::string& dtype);

// Opens `file` in `in`, reads and checks its header, and leaves `in` at the data.
// Throws DataError, naming the file and the tensor.
SafetensorsHeader read_safetensors_header(const std::filesystem::path& file, std::ifstream& in);

}  // namespace pride::train
