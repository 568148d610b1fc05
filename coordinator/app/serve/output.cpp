// SPDX-License-Identifier: Apache-2.0
#include "serve/output.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace pride::app {
namespace {

constexpr int kPoll_ms = 100;
constexpr int kLastPolls = 10;

}  // namespace

Output::Output(std::size_t most_lines) : most_lines_(most_lines), thread_([this] { print(); }) {}

Output::~Output() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Output::add(std::string line) {
  {
    const std::lock_guard lock(mutex_);
    if (lines_.size() >= most_lines_) return;
    lines_.push_back(std::move(line));
  }
  wake_.notify_all();
}

void Output::print() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return over_ || !lines_.empty(); });
    if (lines_.empty()) return;
    const std::string line = std::move(lines_.front());
    lines_.pop_front();
    lock.unlock();
    const bool written = write(line);
    lock.lock();
    if (!written) return;
  }
}

// False if the reader is gone, or if it does not read for a second after the end. A write of
// PIPE_BUF bytes does not block after POLLOUT.
bool Output::write(const std::string& line) {
  int polls_left = kLastPolls;
  for (std::size_t at = 0; at < line.size();) {
    pollfd out{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
    if (poll(&out, 1, kPoll_ms) > 0) {
      const auto n = ::write(STDOUT_FILENO, line.data() + at,
                             std::min<std::size_t>(line.size() - at, PIPE_BUF));
      if (n <= 0) return false;
      at += static_cast<std::size_t>(n);
      continue;
    }
    const std::lock_guard lock(mutex_);
    if (over_ && --polls_left < 0) return false;
  }
  return true;
}

}  // namespace pride::app
