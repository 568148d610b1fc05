// A file that is written atomically: beside its target, then renamed over it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdio>
#include <filesystem>

namespace pride::inline program {

// Written as "<target>.tmp.<pid>", which is removed unless commit() has renamed it to the target;
// for a link, the file behind it. All throw DataError, naming the target.
class PendingFile {
 public:
  explicit PendingFile(const std::filesystem::path& target);
  ~PendingFile();
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;

  void write(const void* bytes, std::size_t size);
  // Replaces the first bytes. REQUIRES: at least `size` bytes were written.
  void rewrite_start(const void* bytes, std::size_t size);
  // Syncs and closes the file, still under its temporary name. Then nothing can be written.
  void finish();
  // Calls finish() unless it was called, and renames the file to the target.
  void commit();

 private:
  [[noreturn]] void fail(const char* what) const;

  std::filesystem::path target_, temporary_;
  std::FILE* file_ = nullptr;
  bool committed_ = false;
};

// Syncs new and changed names in the folder to disk, if the file system supports it.
void sync_folder(const std::filesystem::path& folder) noexcept;

}  // namespace pride::inline program
