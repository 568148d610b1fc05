// Pipeline: takes the buckets of a step through encode, exchange (with serve) and apply. With
// overlap the exchanges run on their own threads, in parallel with backward, encode and each other.
// With Protocol::delay they also run in parallel with the next steps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "optimizer/reporting.h"
#include "optimizer/section.h"
#include "pride/communicator.h"

namespace pride {

class Pipeline {
 public:
  using ModelParallelSum =
      std::function<void(std::span<double>)>;  // OptimizerOptions::model_parallel_sum

  // All must outlive the pipeline; `steps` are this rank's. With overlap each of `comms` has a
  // thread. Only that thread uses it between begin() and finish(), or with a delay until
  // complete(). Bucket b goes to thread b modulo their number, so that one bucket's vote hides
  // behind another's transfer. Without overlap all use the first of `comms`. `caller` is of the
  // same family. If a step breaks, the caller's thread fails the world through it, because `comms`
  // may be in use. REQUIRES: at least one of `comms`, the same number on every rank.
  Pipeline(std::span<const std::unique_ptr<Communicator>> comms, Communicator& caller,
           const Sections& sections, std::span<SectionStep> steps, const Nodes& nodes, bool overlap,
           Space& space = Space::host(), ModelParallelSum model_parallel_sum = nullptr);
  // In the middle of a step: fails the world. Otherwise waits for the exchanges in flight, because
  // the other ranks need this rank's part of them.
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Starts a step with the inputs in `steps`, which must not change until finish(). With `hold`
  // nothing is applied until every bucket is known to be finite. `clip` above 0 scales the mean
  // gradient down to that 2-norm. REQUIRES: clip == 0, or hold and Method::mean_gradient().
  void begin(bool hold, double clip = 0);

  // The frames of a step take at most this, or the buckets that the threads need. A later bucket is
  // encoded when an earlier one was applied, so it cannot leave during backward. No limit with
  // `hold` or with a delay. The same on every rank.
  static constexpr std::size_t kFrameBytes = std::size_t{1} << 30;
  void limit_frames(std::size_t bytes) { frame_bytes_ = bytes; }

  // From now on `keep` gets the results of each bucket before they are applied, in the order of
  // buckets. REQUIRES: no delay.
  using KeepResults = std::function<void(const Flight& flight)>;
  void keep_results(KeepResults keep) { keep_results_ = std::move(keep); }

  // From now on called once in a step that applies something, on the thread of finish(), before the
  // first apply (with a delay, before results are adopted). Later buckets are exchanged meanwhile.
  // An exception from it ends the step.
  void before_apply(std::function<void()> call) { before_apply_ = std::move(call); }

  // The gradient of a section's tensor is complete. Call it before submit() of its buckets.
  void tensor_ready(std::size_t section, std::size_t tensor);

  // The gradients of a bucket are complete. With overlap it is encoded now, if the method can.
  void submit(std::size_t bucket);

  // True, in a step, if nothing reads the gradients of this bucket any more.
  bool is_done_with(std::size_t bucket) const;

  // Finishes the step and returns the non-finite flag, if any. Then no bucket from the flagged one
  // on was applied, and with `hold` none at all. A delayed exchange returns no flag: the method
  // gets it in drop().
  std::optional<NonFinite> finish();

  // Between steps: both wait for the exchanges in flight. complete() gives their results to the
  // method, discard() drops them.
  void complete();
  void discard() noexcept;

  // An error in begin(), submit(), finish() or complete(), on any thread, ends the step. The world
  // has failed with its text, so that no rank waits for this one. Nothing uses the caller's buffers
  // any more, and the exception of encode or exchange is thrown. If a delayed exchange fails
  // between steps, the next of these calls throws.

  // After an error: no bucket of the step was applied. As after a dropped step, parameters are
  // those before it, and momenta may have its gradient.
  bool has_applied_nothing() const noexcept { return !applied_; }

  // traffic(): of the delayed exchanges whose results were adopted.
  bool has_delay() const noexcept { return delay_ > 0; }
  const Traffic& traffic() const noexcept { return traffic_; }
  // Of a section's exchanges in this step. REQUIRES: no delay.
  Traffic traffic_of(std::size_t section) const;

  // 2-norm of the step's mean gradient before it was clipped; 0 without clipping.
  double grad_norm() const noexcept { return grad_norm_; }
  const StepTimes& timing() const noexcept { return timing_; }
  std::size_t wire_bytes() const noexcept;

 private:
  // One of the communicators, and with overlap its thread. mutex_ guards `order` and what follows.
  struct Lane {
    Communicator* comm = nullptr;
    Scratch scratch;
    std::thread thread;
    std::deque<std::size_t> order;  // buckets to exchange
    bool exchanging = false;        // the thread is inside an exchange, and uses buffers
    bool stopped = false;           // not finite: no further bucket of this lane will be exchanged
  };

  // The delayed exchanges that one step began.
  struct Sent {
    StepContext ctx;  // points at the copies below
    std::vector<StepScalars> groups;
    std::vector<char> unused, frozen;
    std::vector<std::size_t> buckets;
  };
  // A bucket's last delayed exchange.
  struct Late {
    Flight flight;
    const StepContext* ctx = nullptr;
    Traffic traffic;
  };

  SectionStep& step_of(std::size_t bucket) { return steps_[order_[bucket].section]; }
  const SectionStep& step_of(std::size_t bucket) const { return steps_[order_[bucket].section]; }
  std::size_t n_buckets() const noexcept { return order_.size(); }
  SectionStep& only() const { return steps_.front(); }  // with a delay
  std::int64_t present_step() const { return steps_.front().ctx.step; }
  Flight& flight_of(std::size_t bucket) { return flights_[separate_ ? bucket % window_ : 0]; }
  std::size_t buckets_at_once() const;
  void encode_after(std::size_t applied);
  bool sends_late(std::size_t bucket) const;
  void encode(std::size_t bucket);
  void exchange(Lane& lane, std::size_t bucket);
  void permit();
  void apply(std::size_t bucket);
  std::optional<NonFinite> run_step();
  std::optional<NonFinite> run_in_order();
  void run_late();
  void begin_late();
  void arrive(const Sent& sent);
  std::optional<NonFinite> apply_as_they_arrive();
  std::optional<NonFinite> apply_held();
  void exchange_loop(Lane& lane);
  void end_threads() noexcept;
  void keep_error(std::exception_ptr error);
  void rethrow_error();
  bool idle(const Lane& lane) const;
  bool wait_for_result(std::size_t bucket);
  std::optional<NonFinite> end_held(std::optional<NonFinite> first);
  void abandon(std::string_view why) noexcept;

  Communicator& caller_;
  const std::span<SectionStep> steps_;
  const std::vector<Sections::Place>& order_;  // of the buckets of all sections
  Space& space_;
  const Nodes nodes_;
  const bool overlap_;
  const std::int64_t delay_;
  const ModelParallelSum model_parallel_sum_;
  KeepResults keep_results_;
  std::function<void()> before_apply_;

  // of the current step
  bool in_step_ = false;
  bool shares_ = false;  // a section has Protocol::preliminary: nothing is encoded before finish()
  bool hold_ = false;
  double clip_ = 0, grad_norm_ = 0;
  bool permitted_ = false;  // before_apply_ has returned
  bool separate_ = false;   // a flight for each bucket in flight, else one for all
  std::size_t frame_bytes_ = kFrameBytes;
  std::size_t window_ = 1;  // buckets that are encoded and not yet applied, at most
  std::vector<char> encoded_;
  std::vector<Flight> flights_;
  std::vector<Traffic> traffic_of_bucket_, preliminary_traffic_;  // the latter by section
  StepTimes timing_;

  // delayed exchanges
  std::vector<Late> late_;                  // by bucket
  std::deque<std::unique_ptr<Sent>> sent_;  // in the order of their steps
  Traffic traffic_;

  // shared by the threads, guarded by mutex_
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<char> ready_;  // encoded, may be exchanged
  std::vector<char> done_;   // exchanged
  bool applied_ = true;      // some of the step, or it cannot be said
  bool failed_ = false;      // nothing further will be exchanged
  bool quit_ = false;
  std::exception_ptr error_;  // the first
  std::vector<Lane> lanes_;
};

}  // namespace pride
