// SPDX-License-Identifier: Apache-2.0
#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace pride {

void run_parallel(std::size_t n, const std::function<void(std::size_t)>& body) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr error;  // the first
  const auto work = [&] {
    try {
      for (std::size_t i = next++; i < n; i = next++) body(i);
    } catch (...) {
      next = n;
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  const std::size_t cpus = std::max(std::thread::hardware_concurrency(), 1U);
  {
    std::vector<std::jthread> threads;
    try {
      for (std::size_t i = 1; i < std::min(cpus, n); ++i) threads.emplace_back(work);
    } catch (const std::system_error&) {  // no more threads: fewer do the work
    }
    work();
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace pride
