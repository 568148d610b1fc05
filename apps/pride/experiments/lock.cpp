// SPDX-License-Identifier: Apache-2.0
#include "experiments/lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "pride/error.h"

namespace pride::app {
namespace {

constexpr const char* kName = ".lock";
constexpr std::chrono::seconds kPatience{60};  // a run that was asked to stop ends its step first
constexpr std::chrono::milliseconds kPoll{50};

// The process that took the lock last, as it wrote into the file.
int holder(int file) {
  char text[32] = {};
  const ssize_t n = pread(file, text, sizeof text - 1, 0);
  return n > 0 ? std::atoi(text) : 0;
}

bool is_alive(int process) { return process > 0 && (kill(process, 0) == 0 || errno == EPERM); }

}  // namespace

FolderLock::FolderLock(const std::filesystem::path& folder) {
  const std::string name = (folder / kName).string();
  file_ = open(name.c_str(), O_RDWR | O_CREAT, 0666);  // no O_CLOEXEC: the runs hold it too
  if (file_ < 0) throw DataError(concat(name, ": ", std::strerror(errno)));
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (flock(file_, LOCK_EX | LOCK_NB) != 0) {
    const int why = errno, other = holder(file_);
    if (why == EWOULDBLOCK && !is_alive(other) && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(kPoll);
      continue;
    }
    close(file_);
    if (why != EWOULDBLOCK) throw DataError(concat(name, ": ", std::strerror(why)));
    throw InvalidArgument(concat(folder.string(), ": another sweep (process ", other,
                                 ") is at work in this folder, or a run that it left behind"));
  }
  const std::string me = std::to_string(getpid()) + "\n";
  if (ftruncate(file_, 0) != 0 || pwrite(file_, me.data(), me.size(), 0) < 0) {
    const int why = errno;
    close(file_);
    throw DataError(concat(name, ": ", std::strerror(why)));
  }
}

FolderLock::~FolderLock() { close(file_); }

}  // namespace pride::app
