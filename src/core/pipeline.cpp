// The schedule of one step.
// SPDX-License-Identifier: Apache-2.0
#include "core/pipeline.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "kernels/kernels.h"
#include "pride/error.h"

namespace pride {
namespace {

// Adds the seconds of its life to a counter.
class Stopwatch {
 public:
  explicit Stopwatch(double& total) : total_(total) {}
  ~Stopwatch() {
    total_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& total_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Runs the body; what it throws is passed on, after its text has gone to `tell`.
template <typename Body, typename Tell>
auto telling(Body&& body, Tell&& tell) {
  try {
    return body();
  } catch (const std::exception& e) {
    tell(e.what());
    throw;
  } catch (...) {
    tell("an exception of unknown type");
    throw;
  }
}

}  // namespace

Pipeline::Pipeline(std::span<const std::unique_ptr<Communicator>> comms, Communicator& caller,
                   Method& method, std::span<const Bucket> buckets, bool overlap)
    : caller_(caller), method_(method), buckets_(buckets), overlap_(overlap) {
  PRIDE_CHECK(!comms.empty(), "pipeline: no communicator given");
  lanes_.resize(overlap ? comms.size() : 1);
  for (std::size_t i = 0; i < lanes_.size(); ++i) lanes_[i].comm = comms[i].get();
  if (!overlap_) return;
  try {
    for (Lane& lane : lanes_) lane.thread = std::thread([this, &lane] { exchange_loop(lane); });
  } catch (...) {
    end_threads();  // those that there are
    throw;
  }
}

Pipeline::~Pipeline() {
  if (ctx_ != nullptr) abandon("the optimizer was destroyed in the middle of a step");
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

// The threads may be inside communicators that are theirs then: the failure reaches them through
// the family.
void Pipeline::abandon(std::string_view why) noexcept {
  caller_.fail(why);
  std::unique_lock lock(mutex_);
  failed_ = true;
  changed_.wait(lock, [&] {
    return std::ranges::none_of(lanes_, [](const Lane& lane) { return lane.exchanging; });
  });
  running_ = false;
  ctx_ = nullptr;
}

void Pipeline::begin(const StepContext& ctx, View params, ConstView grads, bool hold, double clip) {
  ctx_ = &ctx;
  params_ = params;
  grads_ = grads;
  hold_ = hold;
  clip_ = clip;
  grad_norm_ = 0;
  separate_ = overlap_ || hold;
  timing_ = {};
  if (wires_.size() < (separate_ ? buckets_.size() : 1)) {
    wires_.resize(separate_ ? buckets_.size() : 1);
  }
  encoded_.assign(buckets_.size(), 0);

  const std::lock_guard lock(mutex_);
  ready_.assign(buckets_.size(), 0);
  done_.assign(buckets_.size(), 0);
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    lanes_[i].next = i;
    lanes_[i].stopped = false;
  }
  failed_ = false;
  error_ = nullptr;
  running_ = true;
  changed_.notify_all();
}

void Pipeline::submit(std::size_t bucket) {
  PRIDE_CHECK(ctx_ != nullptr, "pipeline: bucket ", bucket, " submitted outside a step");
  // without overlap the one wire is still in use by an earlier bucket: wait for finish()
  if (!overlap_ || method_.needs_whole_gradient()) return;
  telling([&] { encode(bucket); }, [&](const char* why) { abandon(why); });
}

std::optional<Poison> Pipeline::finish() {
  PRIDE_CHECK(ctx_ != nullptr, "pipeline: finish() without begin()");
  const auto poison = telling([&] { return run_step(); }, [&](const char* why) { abandon(why); });
  const std::lock_guard lock(mutex_);
  running_ = false;
  ctx_ = nullptr;
  return poison;
}

std::optional<Poison> Pipeline::run_step() {
  if (method_.needs_whole_gradient()) {
    // nothing is encoded yet, so the threads have nothing to do and their communicators are free
    const Stopwatch watch(timing_.encode_s);
    method_.agree(*lanes_.front().comm, *ctx_, grads_);
  }
  for (std::size_t b = 0; overlap_ && b < buckets_.size(); ++b) {
    if (encoded_[b] == 0) encode(b);
  }
  if (!overlap_) return run_in_order();
  const auto poison = hold_ ? apply_held() : apply_as_they_arrive();
  // after poison the other lanes go on to the ends of theirs, on every rank
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return std::ranges::all_of(lanes_, [&](const Lane& lane) { return idle(lane); });
  });
  if (error_) std::rethrow_exception(error_);
  return poison;
}

void Pipeline::encode(std::size_t bucket) {
  {
    const Stopwatch watch(timing_.encode_s);
    method_.encode(buckets_[bucket], grads_, *ctx_, wire_of(bucket));
  }
  encoded_[bucket] = 1;
  const std::lock_guard lock(mutex_);
  ready_[bucket] = 1;
  changed_.notify_all();
}

// Not every error comes from a call of the communicator, which would tell the others: a frame that
// is refused, for one, is found afterwards. The error is kept before another lane can hear of it,
// so that it is this one which is thrown.
void Pipeline::exchange(Lane& lane, std::size_t bucket) {
  Wire& wire = wire_of(bucket);
  lane.lend(wire);
  telling([&] { method_.exchange(*lane.comm, buckets_[bucket], *ctx_, wire); },
          [&](const char* why) {
            keep_error(std::current_exception());
            lane.comm->fail(why);
          });
  lane.lend(wire);
}

void Pipeline::Lane::lend(Wire& wire) {
  wire.in.swap(in);
  wire.host_up.swap(host_up);
  wire.host_in.swap(host_in);
}

void Pipeline::keep_error(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  failed_ = true;
  if (!error_) error_ = std::move(error);
}

void Pipeline::apply(std::size_t bucket) {
  const Stopwatch watch(timing_.apply_s);
  method_.apply(buckets_[bucket], wire_of(bucket), *ctx_, params_);
}

std::optional<Poison> Pipeline::run_in_order() {
  std::optional<Poison> poison;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    encode(b);
    Wire& wire = wire_of(b);
    {
      const Stopwatch watch(timing_.exchange_s);
      exchange(lanes_.front(), b);
    }
    if (wire.poison && !poison) poison = wire.poison;
    if (poison && !hold_) return poison;
    if (!hold_) apply(b);
  }
  // a held step encodes and exchanges every bucket, so that momentum does not depend on the
  // schedule
  if (hold_ && !poison) apply_all();
  return poison;
}

// Every rank has the whole mean gradient, so nothing is sent for its norm. The sum goes over words
// of 64 coordinates in the order of the layout, whose end is bucket 0: it does not depend on the
// buckets.
double Pipeline::mean_gradient_norm() {
  double squares = 0;
  for (std::size_t b = buckets_.size(); b-- > 0;) {
    const auto mean = method_.mean_gradient(buckets_[b], wire_of(b));
    for (std::size_t i = 0; i < mean.size(); i += kAlignment) {
      squares += kernels::sum_squares(mean.subspan(i, kAlignment));
    }
  }
  return std::sqrt(squares);
}

// A held step, all of whose buckets are good.
void Pipeline::apply_all() {
  if (clip_ > 0) {
    const Stopwatch watch(timing_.apply_s);
    grad_norm_ = mean_gradient_norm();
    const auto factor = static_cast<float>(clip_ / grad_norm_);
    for (std::size_t b = 0; grad_norm_ > clip_ && b < buckets_.size(); ++b) {
      kernels::scale(factor, method_.mean_gradient(buckets_[b], wire_of(b)));
    }
  }
  for (std::size_t b = 0; b < buckets_.size(); ++b) apply(b);
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

std::optional<Poison> Pipeline::apply_as_they_arrive() {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    if (!wait_for_result(b)) break;  // cannot be: a stop without error comes with poison before it
    if (wire_of(b).poison) return wire_of(b).poison;
    apply(b);
  }
  return std::nullopt;
}

std::optional<Poison> Pipeline::apply_held() {
  std::optional<Poison> poison;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    wait_for_result(b);
    if (wire_of(b).poison && !poison) poison = wire_of(b).poison;
  }
  if (!poison) apply_all();
  return poison;
}

// No exchange is on, and none will be in this step.
bool Pipeline::idle(const Lane& lane) const {
  return !lane.exchanging && (failed_ || lane.stopped || lane.next >= buckets_.size());
}

void Pipeline::exchange_loop(Lane& lane) {
  std::unique_lock lock(mutex_);
  while (true) {
    const auto can_go = [&] {
      return running_ && !failed_ && !lane.stopped && lane.next < ready_.size() &&
             ready_[lane.next] != 0;
    };
    changed_.wait(lock, [&] { return quit_ || can_go(); });
    if (quit_) return;
    const std::size_t bucket = lane.next;
    lane.exchanging = true;
    lock.unlock();
    bool good = false;
    try {
      exchange(lane, bucket);
      good = true;
    } catch (...) {  // kept
    }
    lock.lock();
    lane.exchanging = false;
    if (good) {
      done_[bucket] = 1;
      lane.next += lanes_.size();
      // every rank stops this lane at the same bucket, unless the step is held as a whole
      lane.stopped = wire_of(bucket).poison && !hold_;
    }
    changed_.notify_all();
  }
}

std::size_t Pipeline::wire_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const Wire& wire : wires_) bytes += wire.capacity_bytes();
  for (const Lane& lane : lanes_) {
    for (const auto* list : {&lane.in, &lane.host_up, &lane.host_in}) {
      for (const ByteBuffer& b : *list) bytes += b.capacity();
    }
  }
  return bytes;
}

}  // namespace pride
