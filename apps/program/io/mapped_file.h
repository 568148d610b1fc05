// A file's bytes in memory, read from disk as they are touched.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace pride::inline program {

// The file must not shrink while it is mapped: the system would end the program.
class MappedFile {
 public:
  // Throws DataError.
  explicit MappedFile(const std::filesystem::path& file);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }
  std::string_view text() const noexcept { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Throws DataError ("cannot read FILE: it is a folder") unless it is a regular file, or a link to
// one: opening a pipe may wait for ever, and a device may have no end.
void require_regular_file(const std::filesystem::path& file);

// XXH3-64 of a file's bytes. Throws DataError.
std::uint64_t file_hash(const std::filesystem::path& file);

}  // namespace pride::inline program
