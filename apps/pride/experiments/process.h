// Runs as processes of their own, so that whatever happens to one happens to it alone, in a folder
// that one sweep has at a time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace pride::app {

// Runs this very program with the given arguments, its output in the file `log`, and waits for its
// end. While stop_asked() is true (it is polled), the child is asked once to stop, by SIGTERM: it
// has a process group of its own, so that Ctrl-C reaches it only this way. Should this process die
// first, the child is asked as well. Returns its exit code, or 128 + the signal that killed it.
// Throws Error if it cannot be started.
int run_child(const std::vector<std::string>& arguments, const std::filesystem::path& log,
              bool (*stop_asked)() noexcept);

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
