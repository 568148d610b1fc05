// FolderLock: one sweep at a time in a folder.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace pride::app {

// Held until it is destroyed, and by the runs that were started meanwhile until they end: should
// the sweep be killed, nobody writes into a folder in which one of them still does.
class FolderLock {
 public:
  // Waits for the runs of a sweep that was killed to end. Throws InvalidArgument if another sweep
  // holds it, or they do not end; DataError if the folder cannot be written.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int file_ = -1;
};

}  // namespace pride::app
