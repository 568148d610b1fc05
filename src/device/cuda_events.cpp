// SPDX-License-Identifier: Apache-2.0
#include "device/cuda_events.h"

#include <algorithm>

#include "pride/error.h"

namespace pride::cuda {

StreamMarks::~StreamMarks() {
  const Driver& driver = context_.driver();
  for (const Mark& mark : pending_) driver.cuEventDestroy.function(mark.event);
  for (EventHandle event : idle_) driver.cuEventDestroy.function(event);
}

// REQUIRES: the lock.
EventHandle StreamMarks::idle_event() {
  EventHandle event = nullptr;
  if (idle_.empty()) {
    context_.run(context_.driver().cuEventCreate, &event, kBlockingSync | kNoTiming);
  } else {
    event = idle_.back();
    idle_.pop_back();
  }
  return event;
}

// REQUIRES: the lock. Moves the events of marks that are done and have no waiters to idle_.
void StreamMarks::retire(bool query) {
  const auto& is_done = context_.driver().cuEventQuery;
  while (!pending_.empty() && pending_.front().waiters == 0) {
    const Mark& first = pending_.front();
    if (query && first.number > done_ && is_done.function(first.event) == kSuccess) {
      done_ = first.number;
    }
    if (first.number > done_) return;
    idle_.push_back(first.event);
    pending_.pop_front();
  }
}

std::uint64_t StreamMarks::record(Stream stream) {
  const std::lock_guard lock(mutex_);
  retire(true);
  EventHandle event = idle_event();
  try {
    context_.run(context_.driver().cuEventRecord, event, stream);
  } catch (...) {
    idle_.push_back(event);
    throw;
  }
  pending_.push_back({.number = ++last_, .event = event});
  return last_;
}

void StreamMarks::wait(std::uint64_t number) {
  std::unique_lock lock(mutex_);
  PRIDE_CHECK(number <= last_, context_.name(), ": wait for event ", number, " of ", last_);
  if (number <= done_) return;
  const auto mark =
      std::ranges::find_if(pending_, [&](const Mark& m) { return m.number >= number; });
  ++mark->waiters;
  const EventHandle event = mark->event;
  lock.unlock();
  Result result = kSuccess;
  {
    const PrimaryContext::Current current(context_);
    result = context_.driver().cuEventSynchronize.function(event);
  }
  lock.lock();
  --mark->waiters;
  if (result != kSuccess) context_.driver().fail(context_.name(), "cuEventSynchronize", result);
  done_ = std::max(done_, mark->number);
  retire(false);
}

std::size_t StreamMarks::events() {
  const std::lock_guard lock(mutex_);
  return pending_.size() + idle_.size();
}

}  // namespace pride::cuda
