// FolderLock: one run or sweep at a time in a folder of results.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace pride::inline program {

// The file of the lock, in the folder. It stays there and does not count as content.
inline constexpr const char* kLockFile = ".lock";

// Holds the lock until it is destroyed. If this process is killed, its child processes hold the
// lock until they end.
class FolderLock {
 public:
  // `what` uses the folder, for messages: "run". Waits a minute for the child processes of a killed
  // holder. Throws Error if another holds the lock, or they do not end; DataError if the folder
  // cannot be written.
  FolderLock(const std::filesystem::path& folder, const char* what);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  // Throws DataError if the folder, or the lock in it, was removed or replaced meanwhile.
  void check() const;

 private:
  std::filesystem::path file_;
  int descriptor_ = -1;
};

}  // namespace pride::inline program
