// SPDX-License-Identifier: Apache-2.0
#include "program/io/folder_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <string>
#include <system_error>
#include <thread>

#include "pride/error.h"

namespace pride::inline program {
namespace {

constexpr std::chrono::seconds kPatience{60};  // a run that was asked to stop ends its step first
constexpr std::chrono::milliseconds kPoll{50};

// The last holder of the lock, as written in the file.
int holder(int descriptor) {
  char text[32] = {};
  const ssize_t n = pread(descriptor, text, sizeof text - 1, 0);
  return n > 0 ? std::atoi(text) : 0;
}

bool is_alive(int process) { return process > 0 && (kill(process, 0) == 0 || errno == EPERM); }

std::string system_text(int error) { return std::generic_category().message(error); }

}  // namespace

FolderLock::FolderLock(const std::filesystem::path& folder, const char* what)
    : file_(folder / kLockFile) {
  // no O_CLOEXEC: child processes hold it, too
  descriptor_ = open(file_.c_str(), O_RDWR | O_CREAT, 0666);
  if (descriptor_ < 0) throw DataError(concat(file_.string(), ": ", system_text(errno)));
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    const int why = errno, other = holder(descriptor_);
    if (why == EWOULDBLOCK && !is_alive(other) && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(kPoll);
      continue;
    }
    close(descriptor_);
    if (why != EWOULDBLOCK) throw DataError(concat(file_.string(), ": ", system_text(why)));
    throw Error(concat(folder.string(), ": another ", what, " (process ", other,
                       ") or a process it started uses this folder"));
  }
  const std::string me = std::to_string(getpid()) + "\n";
  if (ftruncate(descriptor_, 0) != 0 ||
      pwrite(descriptor_, me.data(), me.size(), 0) != std::ssize(me)) {
    const int why = errno;
    close(descriptor_);
    throw DataError(concat(file_.string(), ": ", system_text(why)));
  }
}

FolderLock::~FolderLock() { close(descriptor_); }

void FolderLock::check() const {
  struct stat mine {
  }, there{};
  if (fstat(descriptor_, &mine) == 0 && stat(file_.c_str(), &there) == 0 &&
      mine.st_ino == there.st_ino && mine.st_dev == there.st_dev) {
    return;
  }
  throw DataError(concat(file_.parent_path().string(), ": the folder, or ", kLockFile,
                         " in it, was removed or replaced while a run wrote there"));
}

}  // namespace pride::inline program
