// TicketTable: a transport's pending operations by the id that its tickets carry. For transports.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "pride/error.h"

namespace pride {

// Elements never move: peers may hold pointers to them. make() reuses an element without
// constructing T again. An id is slot and serial number, so that a stale ticket is detected.
template <typename T>
class TicketTable {
 public:
  struct Entry {
    std::uint64_t id = 0;  // 0: not in use
    T value;
  };

  Entry& make() {
    if (free_.empty()) {
      if (entries_.size() == kSlots) throw CommError("2^24 operations are pending already");
      free_.reserve(entries_.size() + 1);  // release() and clear() never allocate
      entries_.emplace_back();
      free_.push_back(entries_.size() - 1);
    }
    Entry& entry = entries_[free_.back()];
    entry.id = ++made_ * kSlots + free_.back();
    free_.pop_back();
    return entry;
  }

  T& find(std::uint64_t id) {
    const std::size_t slot = id % kSlots;
    PRIDE_CHECK(slot < entries_.size() && entries_[slot].id == id && id != 0,
                "this ticket has no pending operation");
    return entries_[slot].value;
  }

  // REQUIRES: find(id) works.
  void release(std::uint64_t id) noexcept {
    entries_[id % kSlots].id = 0;
    free_.push_back(id % kSlots);
  }

  template <typename Visit>
  void for_each(Visit&& visit) {
    for (Entry& entry : entries_) {
      if (entry.id != 0) visit(entry.value);
    }
  }

  void clear() noexcept {
    for (Entry& entry : entries_) {
      if (entry.id != 0) release(entry.id);
    }
  }

 private:
  static constexpr std::uint64_t kSlots = std::uint64_t{1} << 24;

  std::deque<Entry> entries_;
  std::vector<std::size_t> free_;  // slots
  std::uint64_t made_ = 0;
};

}  // namespace pride
