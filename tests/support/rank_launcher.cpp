// rank_launcher N PROGRAM ARGS...: runs N processes on this machine, with the variables that
// torchrun sets. If one fails, it soon ends the others. Not every machine has torchrun.
// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::chrono::seconds kGrace{5};

// A port that is free at the moment.
int free_port() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const int probe = socket(AF_INET, SOCK_STREAM, 0);
  if (probe < 0 || bind(probe, generic, length) != 0 || getsockname(probe, generic, &length) != 0) {
    std::perror("rank_launcher: no port");
    std::exit(2);
  }
  close(probe);
  return ntohs(address.sin_port);
}

pid_t start(int rank, int world, int port, char** command) {
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that times out leaves no process behind
  if (getppid() != parent) _exit(2);
  const auto set = [](const char* name, int value) {
    setenv(name, std::to_string(value).c_str(), 1);
  };
  set("RANK", rank);
  set("LOCAL_RANK", rank);
  set("WORLD_SIZE", world);
  set("LOCAL_WORLD_SIZE", world);
  set("MASTER_PORT", port);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  execvp(command[0], command);
  std::perror(command[0]);
  _exit(127);
}

// Exit code as in a shell; prints it unless 0.
int exit_code(int rank, int status) {
  const bool killed = WIFSIGNALED(status);
  const int code = killed ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  if (killed) std::fprintf(stderr, "rank_launcher: rank %d: signal %d\n", rank, WTERMSIG(status));
  if (!killed && code != 0) std::fprintf(stderr, "rank_launcher: rank %d: exit %d\n", rank, code);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  const int world = argc > 2 ? std::atoi(argv[1]) : 0;
  if (world < 1) {
    std::fprintf(stderr, "usage: rank_launcher N PROGRAM ARGS...\n");
    return 2;
  }
  std::vector<pid_t> ranks;
  const int port = free_port();
  for (int rank = 0; rank < world; ++rank) ranks.push_back(start(rank, world, port, argv + 2));

  using Clock = std::chrono::steady_clock;
  int result = 0;
  auto enough = Clock::time_point::max();
  for (int left = world; left > 0;) {
    int status = 0;
    const pid_t ended = waitpid(-1, &status, WNOHANG);
    if (ended == 0) {
      if (Clock::now() > enough) {
        for (const pid_t pid : ranks) {
          if (pid != 0) kill(pid, SIGKILL);
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      continue;
    }
    --left;
    for (int rank = 0; rank < world; ++rank) {
      if (ranks[rank] != ended) continue;
      ranks[rank] = 0;
      const int code = exit_code(rank, status);
      if (code != 0 && result == 0) {
        result = code;
        enough = Clock::now() + kGrace;
      }
    }
  }
  return result;
}
