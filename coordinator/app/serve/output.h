// Lines on standard output, written by a separate thread: a slow reader blocks nothing.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

namespace pride::app {

class Output {
 public:
  explicit Output(std::size_t most_lines = 1000);
  ~Output();  // waits at most a second for a slow reader
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  // Does not wait: if most_lines are pending, it drops the line.
  void add(std::string line);

 private:
  void print();
  bool write(const std::string& line);

  const std::size_t most_lines_;
  std::mutex mutex_;  // guards the next two
  std::deque<std::string> lines_;
  bool over_ = false;
  std::condition_variable wake_;
  std::thread thread_;
};

}  // namespace pride::app
