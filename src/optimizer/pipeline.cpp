// The schedule of one step.
// SPDX-License-Identifier: Apache-2.0
#include "optimizer/pipeline.h"

#include <algorithm>
#include <utility>

#include "optimizer/reporting.h"
#include "pride/error.h"

namespace pride {

Pipeline::Pipeline(std::span<const std::unique_ptr<Communicator>> comms, Communicator& caller,
                   Method& method, std::span<const Bucket> buckets, const Nodes& nodes,
                   bool overlap, Space& space, SumOfParts sum_of_parts)
    : caller_(caller),
      step_(method, buckets, space),
      method_(method),
      space_(space),
      buckets_(buckets),
      nodes_(nodes),
      overlap_(overlap),
      delay_(method.protocol({.voters = caller.size()}).delay),
      sum_of_parts_(std::move(sum_of_parts)) {
  PRIDE_CHECK(!comms.empty(), "pipeline: no communicator given");
  lanes_.resize(overlap ? comms.size() : 1);
  for (std::size_t i = 0; i < lanes_.size(); ++i) lanes_[i].comm = comms[i].get();
  if (delay_ > 0) late_.resize(buckets.size());
  ready_.resize(buckets.size());
  done_.resize(buckets.size());
  if (!overlap_) return;
  try {
    for (Lane& lane : lanes_) lane.thread = std::thread([this, &lane] { exchange_loop(lane); });
  } catch (...) {
    end_threads();  // join the threads already started
    throw;
  }
}

Pipeline::~Pipeline() {
  if (ctx_ != nullptr) abandon("the optimizer was destroyed in the middle of a step");
  discard();
  end_threads();
}

void Pipeline::end_threads() noexcept {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
    changed_.notify_all();
  }
  for (Lane& lane : lanes_) {
    if (lane.thread.joinable()) lane.thread.join();
  }
}

// Fails the world through caller_, because threads may be inside their own communicators. The
// failure reaches them through the family.
void Pipeline::abandon(std::string_view why) noexcept {
  caller_.fail(why);
  std::unique_lock lock(mutex_);
  failed_ = true;
  changed_.wait(lock, [&] {
    return std::ranges::none_of(lanes_, [](const Lane& lane) { return lane.exchanging; });
  });
  ctx_ = nullptr;
}

void Pipeline::begin(StepContext& ctx, View params, GradientView grads, bool hold, double clip) {
  if (delay_ > 0) rethrow_error();
  ctx_ = &ctx;
  protocol_ = method_.protocol(ctx);
  applied_ = delay_ > 0 || method_.local() != nullptr;
  params_ = params;
  grads_ = grads;
  hold_ = hold;
  clip_ = clip;
  grad_norm_ = 0;
  permitted_ = before_apply_ == nullptr;
  separate_ = delay_ == 0 && (overlap_ || hold || !space_.is_host());
  timing_ = {};
  window_ = separate_ && !hold ? buckets_at_once() : buckets_.size();
  flights_.resize(std::max(flights_.size(), separate_ ? window_ : 1));
  encoded_.assign(buckets_.size(), 0);
  if (delay_ > 0) return begin_late();

  const std::lock_guard lock(mutex_);
  ready_.assign(buckets_.size(), 0);
  done_.assign(buckets_.size(), 0);
  for (Lane& lane : lanes_) {
    lane.order.clear();
    lane.stopped = false;
  }
  for (std::size_t b = 0; b < buckets_.size(); ++b) lanes_[b % lanes_.size()].order.push_back(b);
  failed_ = false;
  error_ = nullptr;
}

void Pipeline::tensor_ready(std::size_t tensor) {
  // written before a bucket with a part of this tensor goes to a thread, which reads the flag
  if (delay_ > 0 && !sent_.empty() && sent_.back()->ctx.step == ctx_->step) {
    sent_.back()->unused[tensor] = 0;
  }
  const Stopwatch watch(timing_.encode_s);
  reporting([&] { method_.tensor_ready(tensor, *ctx_, grads_); },
            [&](const char* why) { abandon(why); });
}

void Pipeline::submit(std::size_t bucket) {
  PRIDE_CHECK(ctx_ != nullptr, "pipeline: bucket ", bucket, " submitted outside a step");
  // without overlap the one flight is still in use by an earlier bucket: wait for finish()
  if (!overlap_ || protocol_.whole_gradient || bucket >= window_) return;
  reporting([&] { encode(bucket); }, [&](const char* why) { abandon(why); });
}

bool Pipeline::is_done_with(std::size_t bucket) const {
  return encoded_[bucket] != 0 && delay_ == 0 && !protocol_.keeps_gradient &&
         method_.local() == nullptr;
}

std::optional<NonFinite> Pipeline::finish() {
  PRIDE_CHECK(ctx_ != nullptr, "pipeline: finish() without begin()");
  const auto non_finite =
      reporting([&] { return run_step(); }, [&](const char* why) { abandon(why); });
  ctx_ = nullptr;
  return non_finite;
}

std::optional<NonFinite> Pipeline::run_step() {
  if (delay_ > 0) {
    run_late();
    return std::nullopt;
  }
  if (protocol_.whole_gradient) {
    // nothing is encoded yet, so the threads have nothing to do and their communicators are free
    const Stopwatch watch(timing_.encode_s);
    step_.prepare(*ctx_, grads_, protocol_.preliminary);
    if (protocol_.preliminary) {
      Lane& lane = lanes_.front();
      pride::exchange(*lane.comm, method_, *protocol_.preliminary, *ctx_, {}, lane.scratch,
                      step_.preliminary());
      step_.take_preliminary(*ctx_);
    }
  }
  for (std::size_t b = 0; overlap_ && b < window_; ++b) {
    if (encoded_[b] == 0) encode(b);
  }
  if (!overlap_) return run_in_order();
  const auto non_finite = hold_ ? apply_held() : apply_as_they_arrive();
  // if one lane stopped, the others still run to their ends, on every rank
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return std::ranges::all_of(lanes_, [&](const Lane& lane) { return idle(lane); });
  });
  if (error_) std::rethrow_exception(error_);
  return non_finite;
}

void Pipeline::rethrow_error() {
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

void Pipeline::encode(std::size_t bucket) {
  const bool late = sends_late(bucket);
  {
    const Stopwatch watch(timing_.encode_s);
    Flight& flight = late ? late_[bucket].flight : flight_of(bucket);
    step_.encode(bucket, *ctx_, grads_, flight, late ? late_[bucket].ctx : nullptr);
  }
  encoded_[bucket] = 1;
  if (delay_ > 0 && !late) return;  // a local step
  const std::lock_guard lock(mutex_);
  ready_[bucket] = 1;
  changed_.notify_all();
}

// How many buckets' frames fit into frame_bytes_, and at least one more than threads exchange.
std::size_t Pipeline::buckets_at_once() const {
  if (buckets_.empty()) return 0;
  const auto largest = std::ranges::max_element(buckets_, {}, &Bucket::size);
  std::size_t bytes = 0;
  for (const Part& part : method_.parts(*largest, *ctx_)) {
    if (!part.up.bytes) bytes += sizeof(float) * largest->size();  // a sum of the transport
    for (const Shard& shard : part.shards) {
      if (part.up.bytes) bytes += part.up.all_bytes(shard);
      if (part.down.bytes) bytes += part.down.all_bytes(shard);
    }
  }
  const std::size_t fitting = frame_bytes_ / std::max<std::size_t>(bytes, 1);
  return std::min(std::max(fitting, lanes_.size() + 1), buckets_.size());
}

// Encodes the bucket that takes the flight of one that was applied.
void Pipeline::encode_after(std::size_t applied) {
  const std::size_t next = applied + window_;
  if (next >= buckets_.size()) return;
  space_.wait(space_.record());  // until then copies read the frames
  encode(next);
}

// Some errors do not come from the communicator, such as a refused frame. They do not reach the
// other ranks by themselves, so fail() sends them. The error is kept first: fail() makes other
// lanes throw, too, and this error must be the one that is thrown.
void Pipeline::exchange(Lane& lane, std::size_t bucket) {
  Late* const late = delay_ > 0 ? &late_[bucket] : nullptr;
  Flight& flight = late != nullptr ? late->flight : flight_of(bucket);
  const StepContext& ctx = late != nullptr ? *late->ctx : *ctx_;
  reporting(
      [&] {
        const Traffic before = lane.comm->traffic();
        step_.complete(ctx, flight);
        for (std::size_t k = 0; k < flight.parts.size() && !flight.non_finite; ++k) {
          pride::exchange(*lane.comm, method_, flight.parts[k], ctx, nodes_, lane.scratch,
                          flight.wires[k]);
          flight.non_finite = flight.wires[k].non_finite;
        }
        if (late != nullptr) late->traffic = lane.comm->traffic() - before;
      },
      [&](const char* why) {
        keep_error(std::current_exception());
        lane.comm->fail(why);
      });
}

void Pipeline::keep_error(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  failed_ = true;
  if (!error_) error_ = std::move(error);
}

void Pipeline::permit() {
  if (permitted_) return;
  const Stopwatch watch(timing_.exchange_s);
  before_apply_();
  permitted_ = true;
}

void Pipeline::apply(std::size_t bucket) {
  permit();
  applied_ = true;
  const Stopwatch watch(timing_.apply_s);
  const Flight& flight = flight_of(bucket);
  if (keep_results_) keep_results_(flight);
  step_.apply(bucket, flight, *ctx_, params_);
}

std::optional<NonFinite> Pipeline::run_in_order() {
  std::optional<NonFinite> first;
  // a device then encodes the next bucket while one is exchanged
  for (std::size_t b = 0; b < window_ && !space_.is_host(); ++b) encode(b);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    if (space_.is_host()) encode(b);
    {
      const Stopwatch watch(timing_.exchange_s);
      exchange(lanes_.front(), b);
    }
    if (!first) first = flight_of(b).non_finite;
    if (first && !hold_) return first;
    if (hold_) continue;
    apply(b);
    if (!space_.is_host()) encode_after(b);
  }
  // a held step encodes and exchanges every bucket, so that momentum does not depend on the
  // schedule
  return hold_ ? end_held(first) : first;
}

// True if the bucket was exchanged, false if its lane stopped before it. Throws a lane's error.
bool Pipeline::wait_for_result(std::size_t bucket) {
  const Stopwatch watch(timing_.exchange_s);
  const Lane& lane = lanes_[bucket % lanes_.size()];
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_[bucket] != 0 || failed_ || lane.stopped; });
  if (error_) std::rethrow_exception(error_);
  return done_[bucket] != 0;
}

std::optional<NonFinite> Pipeline::apply_as_they_arrive() {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    if (!wait_for_result(b)) break;  // never: a lane stops without error only behind a flag
    if (flight_of(b).non_finite) return flight_of(b).non_finite;
    apply(b);
    encode_after(b);
  }
  return std::nullopt;
}

// True if the lane exchanges nothing now and has nothing left to exchange.
bool Pipeline::idle(const Lane& lane) const {
  return !lane.exchanging && (failed_ || lane.stopped || lane.order.empty() ||
                              ready_[lane.order.front()] == 0);  // the step has stopped before it
}

void Pipeline::exchange_loop(Lane& lane) {
  std::unique_lock lock(mutex_);
  while (true) {
    const auto can_go = [&] {
      return !failed_ && !lane.stopped && !lane.order.empty() && ready_[lane.order.front()] != 0;
    };
    changed_.wait(lock, [&] { return quit_ || can_go(); });
    if (quit_) return;
    const std::size_t bucket = lane.order.front();
    lane.exchanging = true;
    lock.unlock();
    bool good = false;
    try {
      exchange(lane, bucket);
      good = true;
    } catch (...) {  // exchange() has kept the error
    }
    lock.lock();
    lane.exchanging = false;
    if (good) {
      done_[bucket] = 1;
      lane.order.pop_front();
      // every rank stops this lane at the same bucket, unless the step is held as a whole
      lane.stopped = delay_ == 0 && flight_of(bucket).non_finite && !hold_;
    }
    changed_.notify_all();
  }
}

std::size_t Pipeline::wire_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const Flight& flight : flights_) bytes += flight.capacity_bytes();
  for (const Late& late : late_) bytes += late.flight.capacity_bytes();
  for (const Lane& lane : lanes_) bytes += lane.scratch.capacity_bytes();
  return bytes;
}

}  // namespace pride
