// Virtual workers: N workers of one process over one copy of the parameters. Each has a method of
// its own with the state of a rank; shared state exists once.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "methods/method.h"
#include "optimizer/pipeline.h"
#include "pride/flat_buffer.h"
#include "pride/layout.h"
#include "pride/optimizer.h"
#include "routes/in_process.h"

namespace pride {

constexpr int kMostVirtualWorkers = 1024;  // as ranks of a world of threads

// In a step each worker encodes when its gradients are handed over. Then the servers of the
// method's own routes serve all frames in memory, so that bits and counted bytes are those of N
// ranks, and the results are applied once.
class VirtualWorkers {
 public:
  // All must outlive this object. `first` is the method of worker 0, whose state is allocated.
  VirtualWorkers(const Layout& layout, const OptimizerOptions& options, Method& first,
                 std::span<const Bucket> buckets, Space& space);

  int size() const noexcept { return static_cast<int>(workers_.size()); }
  Method& method(int worker) { return *workers_[static_cast<std::size_t>(worker)].method; }
  bool handed_over(int worker) const {
    return workers_[static_cast<std::size_t>(worker)].handed_over;
  }

  StateTable& table(int worker) { return method(worker).state(); }  // of this worker alone
  std::uint64_t state_floats() const;
  std::size_t frame_bytes() const;

  // Encodes a worker's gradients, whose memory is free afterwards. `ctx` is that of all workers,
  // except rank and unused tensors; what it points at must live until finish().
  void hand_over(int worker, const StepContext& ctx, std::span<const char> unused,
                 GradientView grads);

  // Exchanges, and applies unless a gradient is not finite. Afterwards x are the common parameters.
  // REQUIRES: all workers have handed over. `clip`: as for Pipeline::begin().
  std::optional<NonFinite> finish(View x, double clip);
  // After a step that was not dropped: the notes of each worker, or only worker 0's if all are the
  // same.
  std::vector<StepNotes> end_step();
  // Gives up the step: no gradient counts as handed over.
  void forget();

  // The next three are of the last step.
  const Traffic& traffic(int worker) const {
    return workers_[static_cast<std::size_t>(worker)].traffic;
  }
  double grad_norm() const noexcept { return grad_norm_; }
  const Pipeline::Timing& timing() const noexcept { return timing_; }

 private:
  struct Worker {
    std::unique_ptr<Method> own;  // null for worker 0
    Method* method = nullptr;
    std::optional<BucketStep> step;
    bool handed_over = false;
    StepContext ctx;
    std::vector<char> unused;
    FlatBuffer kept;  // its gradient, if the method reads it later
    GradientView grads;
    std::vector<Flight> flights;  // by bucket
    Traffic traffic;
  };

  void keep_gradient(Worker& w);
  void encode(Worker& w);
  void share();
  std::optional<NonFinite> exchange();
  bool exchange_parts(std::size_t k);
  template <typename WireOf>
  std::vector<InProcess::Rank> ranks(const WireOf& wire_of);
  template <typename Body>
  void for_workers(const Body& body);
  void clip_mean(double limit);
  void take_result(std::size_t bucket, View x);
  template <typename Body>
  void for_shared(std::size_t bucket, View x, const Body& body);
  View sink();

  const Layout& layout_;
  const Nodes nodes_;
  std::span<const Bucket> buckets_;
  Space& space_;
  std::vector<Worker> workers_;
  Protocol protocol_;       // of the current step
  FlatBuffer shared_;       // a bucket's shared values before the first worker's step
  FlatBuffer sink_values_;  // local steps write parameters here that nothing reads
  std::vector<ParameterPlace> sink_places_;
  double grad_norm_ = 0;
  Pipeline::Timing timing_;
};

}  // namespace pride
