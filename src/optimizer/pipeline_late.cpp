// Delayed exchanges: begun in one step, adopted in a later one. Only an optimizer of one section
// has them.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "optimizer/pipeline.h"
#include "optimizer/reporting.h"

namespace pride {

bool Pipeline::sends_late(std::size_t bucket) const {
  if (delay_ == 0) return false;
  const Protocol& protocol = only().protocol;
  const Bucket& b = only().section->buckets[bucket];
  return protocol.exchanges && b.begin >= protocol.sent_begin && b.end <= protocol.sent_end;
}

// Queues the exchanges of this step behind those in flight, in the same order on all ranks.
void Pipeline::begin_late() {
  auto sent = std::make_unique<Sent>();
  for (std::size_t b = 0; b < n_buckets(); ++b) {
    if (sends_late(b)) sent->buckets.push_back(b);
  }
  if (sent->buckets.empty()) return;
  const StepContext& ctx = only().ctx;
  sent->groups.assign(ctx.groups.begin(), ctx.groups.end());
  sent->unused.assign(ctx.unused.begin(), ctx.unused.end());
  sent->frozen.assign(ctx.frozen.begin(), ctx.frozen.end());
  sent->ctx = ctx;
  sent->ctx.groups = sent->groups;
  sent->ctx.unused = sent->unused;
  sent->ctx.frozen = sent->frozen;
  const std::lock_guard lock(mutex_);
  for (const std::size_t b : sent->buckets) {
    ready_[b] = done_[b] = 0;
    late_[b].ctx = &sent->ctx;
    if (overlap_) lanes_[b % lanes_.size()].order.push_back(b);
  }
  sent_.push_back(std::move(sent));
}

// Makes the local steps of all buckets. Leaves the exchanges of this step to the threads, and
// adopts the results of the exchanges that began `delay` steps ago.
void Pipeline::run_late() {
  for (std::size_t b = 0; b < n_buckets(); ++b) {
    if (encoded_[b] == 0) encode(b);
    if (overlap_ || !sends_late(b)) continue;
    const Stopwatch watch(timing_.exchange_s);
    exchange(lanes_.front(), b);
    done_[b] = 1;
  }
  permit();
  if (!sent_.empty() && sent_.front()->ctx.step + delay_ <= present_step()) {
    arrive(*sent_.front());
    sent_.pop_front();
  }
  rethrow_error();
  for (std::size_t b = 0; b < n_buckets(); ++b) {
    const Stopwatch watch(timing_.apply_s);
    only().buckets.apply(b, flight_of(b), only().ctx, only().x);
  }
}

// Adopts all buckets of a step, or none: results do not depend on the number of buckets.
void Pipeline::arrive(const Sent& sent) {
  std::optional<NonFinite> bad;
  for (const std::size_t b : sent.buckets) {
    wait_for_result(b);
    if (!bad) bad = late_[b].flight.non_finite;
  }
  const Stopwatch watch(timing_.apply_s);
  for (const std::size_t b : sent.buckets) {
    const auto& [flight, ctx, traffic] = late_[b];
    traffic_ = traffic_ + traffic;
    if (bad) continue;
    only().buckets.keep_result(b, flight, sent.ctx);
  }
  if (bad) only().method->local()->drop(sent.ctx, *bad);
}

void Pipeline::complete() {
  reporting(
      [&] {
        for (; !sent_.empty(); sent_.pop_front()) arrive(*sent_.front());
      },
      [&](const char* why) { abandon(why); });
}

void Pipeline::discard() noexcept {
  if (delay_ == 0) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return std::ranges::all_of(lanes_, [&](const Lane& lane) { return idle(lane); });
  });
  for (Lane& lane : lanes_) lane.order.clear();
  sent_.clear();
  failed_ = false;
  error_ = nullptr;
}

}  // namespace pride
