// The schedule of one step.
// SPDX-License-Identifier: Apache-2.0
#include "optimizer/pipeline.h"

#include <algorithm>
#include <utility>

#include "optimizer/reporting.h"
#include "pride/error.h"

namespace pride {

Pipeline::Pipeline(std::span<const std::unique_ptr<Communicator>> comms, Communicator& caller,
                   const Sections& sections, std::span<SectionStep> steps, const Nodes& nodes,
                   bool overlap, Space& space, ModelParallelSum model_parallel_sum)
    : caller_(caller),
      steps_(steps),
      order_(sections.by_bucket()),
      space_(space),
      nodes_(nodes),
      overlap_(overlap),
      delay_(steps.front().method->protocol({.voters = caller.size()}).delay),
      model_parallel_sum_(std::move(model_parallel_sum)) {
  PRIDE_CHECK(!comms.empty(), "pipeline: no communicator given");
  lanes_.resize(overlap ? comms.size() : 1);
  for (std::size_t i = 0; i < lanes_.size(); ++i) lanes_[i].comm = comms[i].get();
  if (delay_ > 0) late_.resize(n_buckets());
  ready_.resize(n_buckets());
  done_.resize(n_buckets());
  if (!overlap_) return;
  try {
    for (Lane& lane : lanes_) lane.thread = std::thread([this, &lane] { exchange_loop(lane); });
  } catch (...) {
    end_threads();  // join the threads already started
    throw;
  }
}

Pipeline::~Pipeline() {
  if (in_step_) abandon("the optimizer was destroyed in the middle of a step");
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
  in_step_ = false;
}

void Pipeline::begin(bool hold, double clip) {
  if (delay_ > 0) rethrow_error();
  in_step_ = true;
  shares_ = std::ranges::any_of(
      steps_, [](const SectionStep& step) { return step.protocol.preliminary.has_value(); });
  applied_ = delay_ > 0 || std::ranges::any_of(steps_, &SectionStep::is_local);
  hold_ = hold;
  clip_ = clip;
  grad_norm_ = 0;
  permitted_ = before_apply_ == nullptr;
  separate_ = delay_ == 0 && (overlap_ || hold || !space_.is_host());
  timing_ = {};
  window_ = separate_ && !hold ? buckets_at_once() : n_buckets();
  flights_.resize(std::max(flights_.size(), separate_ ? window_ : 1));
  encoded_.assign(n_buckets(), 0);
  traffic_of_bucket_.assign(n_buckets(), {});
  preliminary_traffic_.assign(steps_.size(), {});
  if (delay_ > 0) return begin_late();

  const std::lock_guard lock(mutex_);
  ready_.assign(n_buckets(), 0);
  done_.assign(n_buckets(), 0);
  for (Lane& lane : lanes_) {
    lane.order.clear();
    lane.stopped = false;
  }
  for (std::size_t b = 0; b < n_buckets(); ++b) lanes_[b % lanes_.size()].order.push_back(b);
  failed_ = false;
  error_ = nullptr;
}

void Pipeline::tensor_ready(std::size_t section, std::size_t tensor) {
  // written before a bucket with a part of this tensor goes to a thread, which reads the flag
  if (delay_ > 0 && !sent_.empty() && sent_.back()->ctx.step == present_step()) {
    sent_.back()->unused[tensor] = 0;
  }
  const Stopwatch watch(timing_.encode_s);
  const SectionStep& step = steps_[section];
  reporting([&] { step.method->tensor_ready(tensor, step.ctx, step.grads); },
            [&](const char* why) { abandon(why); });
}

void Pipeline::submit(std::size_t bucket) {
  PRIDE_CHECK(in_step_, "pipeline: bucket ", bucket, " submitted outside a step");
  // without overlap the one flight is still in use by an earlier bucket: wait for finish()
  if (!overlap_ || shares_ || step_of(bucket).protocol.whole_gradient || bucket >= window_) return;
  reporting([&] { encode(bucket); }, [&](const char* why) { abandon(why); });
}

bool Pipeline::is_done_with(std::size_t bucket) const {
  const SectionStep& step = step_of(bucket);
  return encoded_[bucket] != 0 && delay_ == 0 && !step.protocol.keeps_gradient && !step.is_local();
}

std::optional<NonFinite> Pipeline::finish() {
  PRIDE_CHECK(in_step_, "pipeline: finish() without begin()");
  const auto non_finite =
      reporting([&] { return run_step(); }, [&](const char* why) { abandon(why); });
  in_step_ = false;
  return non_finite;
}

std::optional<NonFinite> Pipeline::run_step() {
  if (delay_ > 0) {
    run_late();
    return std::nullopt;
  }
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    SectionStep& step = steps_[i];
    if (!step.protocol.whole_gradient) continue;
    const Stopwatch watch(timing_.encode_s);
    step.buckets.encode_preliminary(step.ctx, step.grads, step.protocol.preliminary);
    if (!step.protocol.preliminary) continue;
    // nothing is encoded yet, so the threads have nothing to do and their communicators are free
    Lane& lane = lanes_.front();
    const Traffic before = lane.comm->traffic();
    pride::exchange(*lane.comm, *step.method, *step.protocol.preliminary, step.ctx, {},
                    lane.scratch, step.buckets.preliminary());
    step.buckets.take_preliminary(step.ctx);
    preliminary_traffic_[i] = lane.comm->traffic() - before;
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
    const SectionStep& step = step_of(bucket);
    step.buckets.encode(order_[bucket].index, step.ctx, step.grads, flight,
                        late ? late_[bucket].ctx : nullptr);
  }
  encoded_[bucket] = 1;
  if (delay_ > 0 && !late) return;  // a local step
  const std::lock_guard lock(mutex_);
  ready_[bucket] = 1;
  changed_.notify_all();
}

// How many buckets' frames fit into frame_bytes_, and at least one more than threads exchange.
std::size_t Pipeline::buckets_at_once() const {
  std::size_t most = 1;  // bytes of a bucket's frames
  for (const SectionStep& step : steps_) {
    const auto& buckets = step.section->buckets;
    if (buckets.empty()) continue;
    const auto largest = std::ranges::max_element(buckets, {}, &Bucket::size);
    std::size_t bytes = 0;
    for (const Part& part : step.method->parts(*largest, step.ctx)) {
      if (!part.up.bytes) bytes += sizeof(float) * largest->size();  // a sum of the transport
      for (const Shard& shard : part.shards) {
        if (part.up.bytes) bytes += part.up.all_bytes(shard);
        if (part.down.bytes) bytes += part.down.all_bytes(shard);
      }
    }
    most = std::max(most, bytes);
  }
  return std::min(std::max(frame_bytes_ / most, lanes_.size() + 1), n_buckets());
}

Traffic Pipeline::traffic_of(std::size_t section) const {
  Traffic sum = preliminary_traffic_.empty() ? Traffic{} : preliminary_traffic_[section];
  for (std::size_t b = 0; b < traffic_of_bucket_.size(); ++b) {
    if (order_[b].section == section) sum = sum + traffic_of_bucket_[b];
  }
  return sum;
}

// Encodes the bucket that takes the flight of one that was applied.
void Pipeline::encode_after(std::size_t applied) {
  const std::size_t next = applied + window_;
  if (next >= n_buckets()) return;
  space_.wait(space_.record());  // until then copies read the frames
  encode(next);
}

// Some errors do not come from the communicator, such as a refused frame. They do not reach the
// other ranks by themselves, so fail() sends them. The error is kept first: fail() makes other
// lanes throw, too, and this error must be the one that is thrown.
void Pipeline::exchange(Lane& lane, std::size_t bucket) {
  Late* const late = delay_ > 0 ? &late_[bucket] : nullptr;
  Flight& flight = late != nullptr ? late->flight : flight_of(bucket);
  const SectionStep& step = step_of(bucket);
  const StepContext& ctx = late != nullptr ? *late->ctx : step.ctx;
  Traffic& traffic = late != nullptr ? late->traffic : traffic_of_bucket_[bucket];
  reporting(
      [&] {
        const Traffic before = lane.comm->traffic();
        step.buckets.finish_frames(ctx, flight);
        for (std::size_t k = 0; k < flight.parts.size() && !flight.non_finite; ++k) {
          pride::exchange(*lane.comm, *step.method, flight.parts[k], ctx, nodes_, lane.scratch,
                          flight.wires[k]);
          step.take_flag(flight, k);
        }
        traffic = lane.comm->traffic() - before;
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
  const SectionStep& step = step_of(bucket);
  step.buckets.apply(order_[bucket].index, flight, step.ctx, step.x);
}

std::optional<NonFinite> Pipeline::run_in_order() {
  std::optional<NonFinite> first;
  // a device then encodes the next bucket while one is exchanged
  for (std::size_t b = 0; b < window_ && !space_.is_host(); ++b) encode(b);
  for (std::size_t b = 0; b < n_buckets(); ++b) {
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
  for (std::size_t b = 0; b < n_buckets(); ++b) {
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
