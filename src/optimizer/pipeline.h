// Pipeline: takes the buckets of a step through encode, exchange (with serve) and apply; with
// overlap, the exchanges run on threads of their own, beside encode and backward and beside each
// other; of methods with Protocol::delay, beside the steps that follow, too.
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

#include "methods/method.h"
#include "pride/communicator.h"

namespace pride {

// Sum of squares of a step's mean gradient, which every rank has: nothing is sent for it. REQUIRES:
// Protocol::mean_gradient, and a flight for each bucket, exchanged.
double mean_gradient_squares(const Method& method, std::span<const Bucket> buckets,
                             std::span<const Flight> flights);

// Waits until a bucket's frames are complete; what kernels found is then in its wires.
void take_faults(Space& space, Flight& flight, const StepContext& ctx);

class Pipeline {
 public:
  struct Timing {
    double encode_s = 0, exchange_s = 0, apply_s = 0;
  };
  using SumOfParts = std::function<void(std::span<double>)>;  // OptimizerOptions::sum_of_parts

  // All must outlive the pipeline. With overlap, each of `comms` has a thread, which alone uses it
  // between begin() and finish(), and with a delay until complete(); bucket b goes through number b
  // modulo their number, so that one bucket's vote hides behind another's transfer. Without, the
  // first does all. `caller` is of the same family and belongs to the caller's thread, which fails
  // the world through it if a step breaks while the threads are inside theirs. REQUIRES: at least
  // one of `comms`, as many on every rank.
  Pipeline(std::span<const std::unique_ptr<Communicator>> comms, Communicator& caller,
           Method& method, std::span<const Bucket> buckets, const Nodes& nodes, bool overlap,
           Space& space = Space::host(), SumOfParts sum_of_parts = nullptr);
  // In the middle of a step: fails the world, as for an error. Else waits for the exchanges that
  // are on their way: other ranks need this rank's part of them.
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // In the place of exchanges bucket by bucket: takes the flights of all buckets, encoded, and
  // leaves their results in them, and in ctx the round's voters and scalars. What becomes of them:
  // kReplay: the results are not of this worker's frames; kNothing: they are not for its
  // parameters.
  enum class Results { kApply, kReplay, kNothing };
  using ExchangeAll = std::function<Results(StepContext& ctx, std::span<Flight> flights)>;

  // Starts a step. `ctx` and what it points at must live until finish(). With `hold`, nothing is
  // applied until every bucket is known to be good; `clip` above 0, which needs it, scales the mean
  // gradient down to that 2-norm. REQUIRES: clip == 0, or hold and Protocol::mean_gradient.
  // `all`: empty, or without overlap the exchange of this step.
  void begin(StepContext& ctx, View params, GradientView grads, bool hold, double clip = 0,
             ExchangeAll all = {});

  // From now on `keep` gets the results of each bucket before they are applied, in the order of
  // buckets. REQUIRES: a method without a delay.
  using KeepResults = std::function<void(const Flight& flight)>;
  void keep_results(KeepResults keep) { keep_results_ = std::move(keep); }

  // The gradient of a tensor is complete; comes before its buckets are submitted.
  void tensor_ready(std::size_t tensor);

  // The gradients of a bucket are complete: encodes it, if it can be already (with overlap).
  void submit(std::size_t bucket);

  // In a step: nothing reads the gradients of this bucket any more.
  bool is_done_with(std::size_t bucket) const;

  // Does what is left and returns the non-finite flag, if any: then no bucket from that one on was
  // applied; with `hold`, none at all. Of exchanges with a delay there is no flag: the method has
  // it in drop().
  std::optional<NonFinite> finish();

  // Between steps: waits for the exchanges that are on their way, for the method to take their
  // results, or to discard them.
  void complete();
  void discard() noexcept;

  // An error in begin(), submit(), finish() or complete(), on either thread, ends the step: the
  // world has failed with its text, so that no rank waits for this one; nothing uses the caller's
  // buffers any more; and what encode or exchange threw is thrown. What an exchange with a delay
  // throws between steps, the next of these throws.

  // Of the exchanges with a delay whose results were taken: what their threads counted.
  bool has_delay() const noexcept { return delay_ > 0; }
  const Traffic& traffic() const noexcept { return traffic_; }

  // 2-norm of the step's mean gradient before it was clipped; 0 without clipping.
  double grad_norm() const noexcept { return grad_norm_; }
  const Timing& timing() const noexcept { return timing_; }
  std::size_t wire_bytes() const noexcept;

 private:
  // One of the communicators, and with overlap its thread. From `order` on it is shared.
  struct Lane {
    Communicator* comm = nullptr;
    Scratch scratch;
    std::thread thread;
    std::deque<std::size_t> order;  // the buckets that it is to exchange
    bool exchanging = false;        // the thread is inside an exchange, and uses buffers
    bool stopped = false;           // not finite: no further bucket of this lane will be exchanged
  };

  // The exchanges that were begun in one step, with a delay.
  struct Sent {
    StepContext ctx;  // points at these copies
    std::vector<StepScalars> groups;
    std::vector<char> unused, frozen;
    std::vector<std::size_t> buckets;
  };
  // A bucket's last exchange with a delay.
  struct Late {
    Flight flight;
    const StepContext* ctx = nullptr;
    Traffic traffic;
  };

  Flight& flight_of(std::size_t bucket) { return flights_[separate_ ? bucket : 0]; }
  bool sends_late(std::size_t bucket) const;
  void encode(std::size_t bucket);
  void exchange(Lane& lane, std::size_t bucket);
  void apply(std::size_t bucket);
  std::optional<NonFinite> run_step();
  std::optional<NonFinite> run_in_order();
  std::optional<NonFinite> run_as_one();
  void run_late();
  void begin_late();
  void arrive(const Sent& sent);
  void settle(const Flight& flight);
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
  Method& method_;
  Space& space_;
  std::span<const Bucket> buckets_;
  const Nodes nodes_;
  const bool overlap_;
  const std::int64_t delay_;
  const SumOfParts sum_of_parts_;
  KeepResults keep_results_;

  // the step at hand
  StepContext* ctx_ = nullptr;
  Protocol protocol_;
  View params_;
  GradientView grads_;
  bool hold_ = false;
  double clip_ = 0, grad_norm_ = 0;
  ExchangeAll all_;
  Results results_ = Results::kApply;
  bool separate_ = false;  // a flight for each bucket, else one for all
  std::vector<char> encoded_;
  std::vector<Flight> flights_;
  Timing timing_;

  // exchanges with a delay
  std::vector<Late> late_;                  // by bucket
  std::deque<std::unique_ptr<Sent>> sent_;  // in the order of their steps
  Traffic traffic_;

  // between the threads, under mutex_
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<char> ready_;  // encoded, may be exchanged
  std::vector<char> done_;   // exchanged
  bool failed_ = false;      // nothing further will be exchanged
  bool quit_ = false;
  std::exception_ptr error_;  // the first
  std::vector<Lane> lanes_;
};

}  // namespace pride
