// WorkThread: tasks one after the other, on a thread of its own. A Coordinator::Run.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace pride::coord {

class WorkThread {
 public:
  WorkThread();
  ~WorkThread();  // the tasks that it was given are done first
  WorkThread(const WorkThread&) = delete;
  WorkThread& operator=(const WorkThread&) = delete;

  void run(std::function<void()> task);

 private:
  void work();

  std::mutex mutex_;  // guards the two below
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::condition_variable wake_;
  std::thread thread_;
};

}  // namespace pride::coord
