// SPDX-License-Identifier: Apache-2.0
#include "train/vision/prefetcher.h"

#include "pride/error.h"

namespace pride::train {

Prefetcher::Prefetcher(int threads) {
  PRIDE_CHECK(threads >= 0, "prefetcher: ", threads, " threads");
  threads_.reserve(static_cast<std::size_t>(threads));
  try {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
  } catch (const std::exception& error) {  // the system has no more
    stop();
    // + 1: the thread that calls wait() makes rows, too
    throw Error(concat("only ", threads_.size() + 1, " of ", threads + 1,
                       " threads could be started: ", error.what()));
  }
}

Prefetcher::~Prefetcher() { stop(); }

void Prefetcher::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Prefetcher::begin(std::size_t rows, MakeRow make) {
  auto batch = std::make_unique<Batch>();
  batch->make = std::move(make);
  batch->rows = rows;
  {
    const std::lock_guard lock(mutex_);
    batches_.push_back(std::move(batch));
  }
  ++pending_;
  work_.notify_all();
}

void Prefetcher::wait() {
  PRIDE_CHECK(pending_ > 0, "prefetcher: no batch was started");
  --pending_;
  std::unique_lock lock(mutex_);
  Batch& batch = *batches_.front();
  while (!batch.done()) {
    if (batch.open()) {
      make_row(batch, lock);
    } else {
      finished_.wait(lock);
    }
  }
  const std::unique_ptr<Batch> taken = std::move(batches_.front());
  batches_.pop_front();
  lock.unlock();
  if (taken->error) std::rethrow_exception(taken->error);
}

void Prefetcher::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    Batch* batch = nullptr;
    work_.wait(lock, [&] { return stop_ || (batch = open_batch()) != nullptr; });
    if (stop_) return;
    make_row(*batch, lock);
  }
}

Prefetcher::Batch* Prefetcher::open_batch() {
  for (const auto& batch : batches_) {
    if (batch->open()) return batch.get();
  }
  return nullptr;
}

// All rows below a failing row have begun already, so the first failing row is always found.
void Prefetcher::make_row(Batch& batch, std::unique_lock<std::mutex>& lock) {
  const std::size_t row = batch.next++;
  ++batch.running;
  lock.unlock();
  std::exception_ptr error;
  try {
    batch.make(row);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  --batch.running;
  if (error && (!batch.error || row < batch.failed)) {
    batch.error = std::move(error);
    batch.failed = row;
  }
  if (batch.error) batch.next = batch.rows;
  if (batch.done()) finished_.notify_all();
}

}  // namespace pride::train
