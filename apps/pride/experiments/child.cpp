// SPDX-License-Identifier: Apache-2.0
#include "experiments/child.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
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

int open_or_throw(const char* path, int flags) {
  const int file = open(path, flags | O_CLOEXEC, 0666);
  if (file < 0) throw Error(concat(path, ": ", std::strerror(errno)));
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

}  // namespace

int run_child(const std::vector<std::string>& arguments, const std::filesystem::path& log,
              bool (*stop_asked)() noexcept) {
  std::vector<std::string> texts = {"pride"};
  texts.insert(texts.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& text : texts) argv.push_back(text.data());
  argv.push_back(nullptr);
  const int in = open_or_throw("/dev/null", O_RDONLY);
  const int out = open_or_throw(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC);
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

}  // namespace pride::app
