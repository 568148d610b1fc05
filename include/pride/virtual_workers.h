// VirtualWorkers: one process plays several ranks, one after the other, over one copy of the
// parameters (docs/virtual_workers.md).
// SPDX-License-Identifier: Apache-2.0
//
//   pride::VirtualWorkers workers(layout, {.method = "dlion-vote"}, {.number = 32});
//   for (...) {
//     for (int i = 0; i < 32; ++i) { compute grads; workers.hand_over(i, params, grads); }
//     workers.step(params);
//   }
#pragma once

#include <span>
#include <vector>

#include "pride/replica.h"

namespace pride {

struct VirtualWorkersOptions {
  int number = 1;                 // 1 to 1024
  std::vector<int> weights = {};  // votes of each worker; empty: OptimizerOptions::vote_weight
};

// Parameters, states and counted bytes equal those of as many ranks.
class VirtualWorkers : public Replica {
 public:
  // OptimizerOptions::overlap has no effect; `nodes` are those of the workers.
  VirtualWorkers(Layout layout, OptimizerOptions options, VirtualWorkersOptions workers);

  // The gradients of one worker, and its unused tensors. Call it once per worker and step, in any
  // order. The gradients are read before it returns. set_gradient_factor() before it applies to
  // this worker.
  void hand_over(int worker, const Parameters& params, const Gradients& grads,
                 std::span<const bool> unused = {});

  // The step of all workers: exchanges and applies once. Throws InvalidArgument, and has changed
  // nothing, if a worker has not handed over; otherwise as Optimizer::step().
  StepReport step(const Parameters& params);

  // With local steps: sets the parameters to the worker's own, before its forward. After step()
  // they are the common ones. With other methods it changes nothing. Also allowed between calls of
  // hand_over().
  void to_worker(int worker, const Parameters& params) const;

  // As Optimizer::add().
  void add(std::vector<TensorSpec> tensors, std::vector<ParamGroup> groups = {});

  // The state of a worker, equal to that of the rank with its number in a job of as many ranks.
  StateDict save(int worker) const;
  using Replica::save;

 private:
  struct Impl;
  Impl& impl() const noexcept;
};

}  // namespace pride
