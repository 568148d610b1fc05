// WorkPool: a few threads for a bounded number of tasks. One thread runs them in order: a
// Coordinator::Run.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

namespace pride::coord {

class WorkPool {
 public:
  explicit WorkPool(int threads, std::size_t most_tasks = std::numeric_limits<std::size_t>::max());
  ~WorkPool();  // runs the present tasks first, and those that they add
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  // False: `most_tasks` wait already, and the task is dropped. REQUIRES: tasks do not throw.
  bool add(std::function<void()> task);

 private:
  void work();

  const std::size_t most_tasks_;
  std::mutex mutex_;  // guards the next two members
  std::deque<std::function<void()>> tasks_;
  bool over_ = false;
  std::condition_variable wake_;
  std::vector<std::thread> threads_;
};

}  // namespace pride::coord
