// FolderLock: one run or sweep at a time in a folder of results.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace pride::train {

// The file of the lock, in the folder; it stays there, and counts as none of its contents.
inline constexpr const char* kLockFile = ".lock";

// Held until it is destroyed, and by the processes that were started meanwhile until they end,
// should this one be killed.
class FolderLock {
 public:
  // `what` is at work in the folder, for messages: "run". Waits a minute for the processes of a
  // holder that was killed. Throws Error if another holds the lock, or they do not end;
  // DataError if the folder cannot be written.
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

}  // namespace pride::train
