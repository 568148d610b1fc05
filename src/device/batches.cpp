// SPDX-License-Identifier: Apache-2.0
#include "device/batches.h"

#include <algorithm>
#include <iterator>
#include <span>

namespace pride::device {

// Whether the batch's calls and another one give other values in another order.
bool Batches::Batch::conflicts(const Touches& touches) const {
  const auto overlaps = [](const auto& map, const Touch& touch) {
    const auto after = map.lower_bound(touch.end);
    return after != map.begin() && std::prev(after)->second > touch.begin;
  };
  for (const Touch& touch : touches) {
    for (const Use other : {Use::kRead, Use::kNote, Use::kWrite}) {
      if (touch.use == other && other != Use::kWrite) continue;
      if (overlaps(used[static_cast<std::size_t>(other)], touch)) return true;
    }
  }
  return false;
}

// Ranges are kept disjoint: overlapping ranges are merged.
void Batches::Batch::use(const Touch& touch) {
  auto& map = used[static_cast<std::size_t>(touch.use)];
  auto [begin, end, as] = touch;
  auto at = map.upper_bound(begin);
  if (at != map.begin() && std::prev(at)->second >= begin) --at;
  while (at != map.end() && at->first <= end) {
    begin = std::min(begin, at->first);
    end = std::max(end, at->second);
    at = map.erase(at);
  }
  map.emplace_hint(at, begin, end);
}

// The batch that a call joins: the first of its kernel behind all batches that it depends on.
Batches::Batch& Batches::batch_of(Kernel kernel, const Touches& touches) {
  std::size_t joined = n_;
  for (std::size_t b = n_; b-- > 0 && !batches_[b].conflicts(touches);) {
    if (batches_[b].kernel == kernel) joined = b;
  }
  if (joined < n_) return batches_[joined];
  if (joined == batches_.size()) batches_.emplace_back();
  ++n_;
  Batch& batch = batches_[joined];
  batch.kernel = kernel;
  batch.jobs.clear();
  batch.first.assign(1, 0);
  batch.used = {};
  return batch;
}

void Batches::add(const Job& job, const Touches& touches) {
  if (job.n == 0) return;
  Batch& batch = batch_of(job.kernel, touches);
  const auto bytes = std::span(job.bytes).first(job_bytes(job.kernel));
  batch.jobs.insert(batch.jobs.end(), bytes.begin(), bytes.end());
  batch.first.push_back(batch.first.back() + (job.n + kChunk - 1) / kChunk);
  for (const Touch& touch : touches) batch.use(touch);
}

bool Batches::conflict(const Touches& touches) const {
  return std::ranges::any_of(std::span(batches_).first(n_),
                             [&](const Batch& batch) { return batch.conflicts(touches); });
}

void Batches::launch(Device& on) const {
  for (const Batch& batch : std::span(batches_).first(n_)) {
    on.launch({batch.kernel, batch.jobs, batch.first});
  }
}

}  // namespace pride::device
