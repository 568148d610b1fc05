// Pipeline: takes the buckets of a step through encode, exchange and apply; with overlap, the
// exchanges run on a thread of their own, in bucket order, beside encode and backward.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "pride/communicator.h"
#include "pride/method.h"

namespace pride {

class Pipeline {
 public:
  struct Timing {
    double encode_s = 0, exchange_s = 0, apply_s = 0;
  };

  // All must outlive the pipeline. With overlap, only the pipeline's thread uses `comm` between
  // begin() and finish(). `caller` is of the same family and belongs to the caller's thread, which
  // tells the world through it when a step breaks while the pipeline's thread is inside `comm`.
  Pipeline(Communicator& comm, Communicator& caller, Method& method,
           std::span<const Bucket> buckets, bool overlap);
  // In the middle of a step: tells the world, as for an error.
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Starts a step. `ctx` and what it points at must live until finish(). With `hold`, nothing is
  // applied until every bucket is known to be good; `clip` above 0, which needs it, scales the mean
  // gradient down to that 2-norm. REQUIRES: clip == 0 or hold and method.has_mean_gradient().
  void begin(const StepContext& ctx, View params, ConstView grads, bool hold, double clip = 0);

  // The gradients of a bucket are complete: encodes it, if it can be already (with overlap).
  void submit(std::size_t bucket);

  // Does what is left and returns the poison, if any: then no bucket from the poisoned one on was
  // applied; with `hold`, none at all.
  std::optional<Poison> finish();

  // An error in submit() or finish(), on either thread, ends the step: the world has failed with
  // its text, so that no rank waits for this one; nothing uses the caller's buffers any more; and
  // what encode or exchange threw is thrown.

  // 2-norm of the step's mean gradient before it was clipped; 0 without clipping.
  double grad_norm() const noexcept { return grad_norm_; }
  const Timing& timing() const noexcept { return timing_; }
  std::size_t wire_bytes() const noexcept;

 private:
  Wire& wire_of(std::size_t bucket) { return wires_[separate_ ? bucket : 0]; }
  void encode(std::size_t bucket);
  void exchange(std::size_t bucket);
  void apply(std::size_t bucket);
  std::optional<Poison> run_step();
  std::optional<Poison> run_in_order();
  std::optional<Poison> apply_as_they_arrive();
  std::optional<Poison> apply_held();
  void exchange_loop();
  bool wait_for_result(std::size_t bucket);
  void apply_all();
  double mean_gradient_norm();
  void abandon(std::string_view why) noexcept;

  Communicator& comm_;
  Communicator& caller_;
  Method& method_;
  std::span<const Bucket> buckets_;
  const bool overlap_;

  // the step at hand
  const StepContext* ctx_ = nullptr;
  View params_;
  ConstView grads_;
  bool hold_ = false;
  double clip_ = 0, grad_norm_ = 0;
  bool separate_ = false;  // a wire for each bucket, else one for all
  std::vector<char> encoded_;
  std::vector<Wire> wires_;
  Timing timing_;

  // between the two threads, under mutex_
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<char> ready_;    // encoded, may be exchanged
  std::size_t exchanged_ = 0;  // buckets done, in order
  bool running_ = false;       // a step is on
  bool exchanging_ = false;    // the thread is inside an exchange, and uses buffers
  bool stopped_ = false;       // poison or error: no further bucket will be exchanged
  bool quit_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace pride
