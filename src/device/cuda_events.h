// Points of a stream that threads can wait for.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <vector>

#include "device/cuda_context.h"

namespace pride::cuda {

// Marks have numbers 1, 2, ... in the order of the stream. Any thread may call wait(); it holds no
// lock while it waits. An event of the driver is reused once no thread waits for it.
class StreamMarks {
 public:
  explicit StreamMarks(const PrimaryContext& context) : context_(context) {}
  ~StreamMarks();  // REQUIRES: no thread waits
  StreamMarks(const StreamMarks&) = delete;
  StreamMarks& operator=(const StreamMarks&) = delete;

  std::uint64_t record(Stream stream);  // always the same stream; REQUIRES: the context is current
  void wait(std::uint64_t number);
  std::size_t events();  // number of existing driver events

 private:
  struct Mark {
    std::uint64_t number;
    EventHandle event;
    int waiters = 0;
  };

  EventHandle idle_event();
  void retire(bool query);

  const PrimaryContext& context_;
  std::mutex mutex_;         // guards the rest
  std::list<Mark> pending_;  // ascending; a list, so that threads can wait for an element
  std::vector<EventHandle> idle_;
  std::uint64_t last_ = 0, done_ = 0;
};

}  // namespace pride::cuda
