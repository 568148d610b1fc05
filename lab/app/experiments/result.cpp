// One run: read from its folder, or run in its own process.
// SPDX-License-Identifier: Apache-2.0
#include "commands.h"
#include "experiments/runner.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "pride/error.h"
#include "program/utf8.h"

namespace pride::app {
namespace fs = std::filesystem;
namespace {

constexpr const char* kThisProgram = "/proc/self/exe";  // works even if the file was replaced
constexpr int kCannotStart = 127;
constexpr std::chrono::milliseconds kPoll{20};

constexpr const char* kErrorMark = "pride: error: ";
constexpr const char* kKilledBySignal = "killed by signal ";

// Reads the run's folder. Throws DataError if the files cannot be read, or lack steps.
RunData read_whole(const Run& run) {
  RunData data{.folder = run.folder.string()};
  read_run(data);
  if (data.summary.is_null()) throw DataError(data.error);
  const std::size_t n = data.summary.at("steps");
  if (data.cut_short || data.n_steps != n) {
    throw DataError(concat((run.folder / "metrics.jsonl").string(), ": ", data.n_steps,
                           " steps, summary.json has ", n, data.cut_short ? "; cut short" : ""));
  }
  return data;
}

// The last error message in a log, or its last line.
std::string last_error(const fs::path& log) {
  std::ifstream in(log);
  std::string found, last;
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(kErrorMark, 0) == 0) found = line.substr(std::strlen(kErrorMark));
    if (!line.empty()) last = line;
  }
  return as_utf8(found.empty() ? last : found);  // names of files may not be UTF-8
}

int open_or_throw(const std::string& path, int flags) {
  const int file = open(path.c_str(), flags, 0666);
  if (file < 0) throw DataError(concat(path, ": ", std::strerror(errno)));
  return file;
}

// Runs between fork and exec, so it calls only async-signal-safe functions.
[[noreturn]] void become(char* const* argv, int in, int out, pid_t parent) {
  setpgid(0, 0);
#ifdef __linux__
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(kCannotStart);  // the parent ended before prctl()
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

// Runs this program with the given arguments, its output in the file `log`, and waits for its end.
// Polls stop_asked(); once that is true, sends SIGTERM to the child. The child has its own process
// group, so that Ctrl-C reaches it only this way. If this process dies first, the child gets
// SIGTERM, too. Returns its exit code, or 128 + the signal that killed it.
int run_child(const std::vector<std::string>& arguments, const fs::path& log,
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

}  // namespace

std::optional<RunData> made_before(const Run& run, std::string& unusable) {
  if (!fs::exists(run.folder / "summary.json")) return std::nullopt;
  try {
    RunData data = read_whole(run);
    if (!data.interrupted() && same_run(data.summary, run)) return data;
  } catch (const DataError& error) {
    unusable = error.what();
  }
  return std::nullopt;
}

std::optional<RunData> make_run(const Run& run, bool (*stop_asked)() noexcept) {
  std::error_code error;
  fs::create_directories(run.folder, error);
  if (error) throw DataError(concat(run.folder.string(), ": ", error.message()));
  // a failed run must not leave an old summary
  fs::remove_all(run.folder / "summary.json");
  std::vector<std::string> arguments = {"train"};
  arguments.insert(arguments.end(), run.arguments.begin(), run.arguments.end());
  arguments.insert(arguments.end(), {concat("--out=", run.folder.string()), "--overwrite"});
  const int code = run_child(arguments, run.folder / "log", stop_asked);
  if (code == 0) return read_whole(run);  // also if it ended before it got SIGTERM
  if (stop_asked() || code == kInterrupted) return std::nullopt;
  RunData failed{.folder = run.folder.string(), .error = last_error(run.folder / "log")};
  if (code > 128) {
    failed.error = concat(kKilledBySignal, code - 128);
  } else if (failed.error.empty()) {
    failed.error = concat("exit code ", code);
  }
  return failed;
}

bool was_killed(const RunData& result) {
  return result.error == kStoppedBySignal || result.error.starts_with(kKilledBySignal);
}

}  // namespace pride::app
