// Batches of rows made ahead of their use, by threads that share the rows of all of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace pride::train {

// One thread begins batches and waits for them, in the same order; it bounds how many are pending.
// Free threads make rows in order, one by one; a row must not depend on its thread.
class Prefetcher {
 public:
  // Makes row `row` of its batch. Called once per row, from any thread, for several rows at a time.
  using MakeRow = std::function<void(std::size_t row)>;

  // Without threads wait() makes all rows. Throws Error if the system cannot start the threads.
  explicit Prefetcher(int threads);
  // Rows that no thread has begun are not made. Afterwards no `make` is called.
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // Returns at once. Copies of `make` are gone when wait() of this batch returns or throws.
  void begin(std::size_t rows, MakeRow make);

  // Waits until all rows of the oldest batch are made, and makes some of them itself. Throws what
  // the first row that failed threw; later rows of that batch may then be missing. Other batches
  // are not affected. REQUIRES: pending() > 0.
  void wait();

  // Batches begun and not yet waited for.
  std::size_t pending() const noexcept { return pending_; }

 private:
  struct Batch {
    MakeRow make;
    std::size_t rows = 0, next = 0;  // rows below `next` are taken
    std::size_t running = 0;
    std::size_t failed = 0;  // the row of `error`
    std::exception_ptr error;

    bool open() const noexcept { return next < rows; }
    bool done() const noexcept { return !open() && running == 0; }
  };

  void stop();
  void run();
  Batch* open_batch();
  void make_row(Batch& batch, std::unique_lock<std::mutex>& lock);

  std::size_t pending_ = 0;  // used only by the thread that begins and waits
  std::mutex mutex_;         // guards the members below, except the threads
  std::condition_variable work_, finished_;
  std::deque<std::unique_ptr<Batch>> batches_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace pride::train
