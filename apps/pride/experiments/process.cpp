// SPDX-License-Identifier: Apache-2.0
#include "experiments/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "pride/error.h"

namespace pride::app {
namespace {

constexpr const char* kThisProgram = "/proc/self/exe";  // also if its file was replaced meanwhile
constexpr int kCannotStart = 127;
constexpr std::chrono::milliseconds kPoll{20};

constexpr const char* kLockName = ".lock";
constexpr std::chrono::seconds kPatience{60};  // a run that was asked to stop ends its step first

int open_or_throw(const std::string& path, int flags) {
  const int file = open(path.c_str(), flags, 0666);
  if (file < 0) throw DataError(concat(path, ": ", std::strerror(errno)));
  return file;
}

// Between fork and exec: only what may be called there.
[[noreturn]] void become(char* const* argv, int in, int out, pid_t parent) {
  setpgid(0, 0);
#ifdef __linux__
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(kCannotStart);  // it is gone already
#endif
  dup2(in, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(out, STDERR_FILENO);
  execv(kThisProgram, argv);
  _exit(kCannotStart);
}

int wait_for(pid_t child, bool (*stop_asked)() noexcept) {
  bool asked = false;
  int status = 0;
  while (true) {
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) break;
    if (ended < 0 && errno != EINTR) throw Error(concat("waitpid: ", std::strerror(errno)));
    if (!asked && stop_asked()) {
      kill(child, SIGTERM);
      asked = true;
    }
    std::this_thread::sleep_for(kPoll);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// The process that took the lock last, as it wrote into the file.
int holder(int file) {
  char text[32] = {};
  const ssize_t n = pread(file, text, sizeof text - 1, 0);
  return n > 0 ? std::atoi(text) : 0;
}

bool is_alive(int process) { return process > 0 && (kill(process, 0) == 0 || errno == EPERM); }

}  // namespace

int run_child(const std::vector<std::string>& arguments, const std::filesystem::path& log,
              bool (*stop_asked)() noexcept) {
  std::vector<std::string> texts = {"pride"};
  texts.insert(texts.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& text : texts) argv.push_back(text.data());
  argv.push_back(nullptr);
  const int in = open_or_throw("/dev/null", O_RDONLY | O_CLOEXEC);
  const int out = open_or_throw(log.string(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC);
  const pid_t parent = getpid(), child = fork();
  if (child == 0) become(argv.data(), in, out, parent);
  const int why = errno;
  close(in);
  close(out);
  if (child < 0) throw Error(concat("cannot start a process: ", std::strerror(why)));
  const int code = wait_for(child, stop_asked);
  if (code == kCannotStart) throw Error(concat("cannot start ", kThisProgram));
  return code;
}

FolderLock::FolderLock(const std::filesystem::path& folder) {
  const std::string name = (folder / kLockName).string();
  file_ = open_or_throw(name, O_RDWR | O_CREAT);  // no O_CLOEXEC: the runs hold it too
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
