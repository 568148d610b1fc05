// ResultFollower: applies the results of another rank's step, without that rank's state.
// SPDX-License-Identifier: Apache-2.0
//
// For ranks that divide a model: each has the state of its own tensors, and all have the
// parameters. Results of a step, about a bit per parameter, then travel instead of parameters.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "pride/layout.h"
#include "pride/optimizer.h"
#include "pride/tensors.h"

namespace pride {

class ResultFollower {
 public:
  // Follows the optimizer that another rank has for the tensors of `layout`, with the same voters
  // and options as `own`, which keeps its own results from its next step on. `own` must outlive
  // this object and get no further tensors. Throws InvalidArgument if its options have fewer groups
  // than the layout.
  ResultFollower(Optimizer& own, Layout layout);
  ~ResultFollower();
  ResultFollower(const ResultFollower&) = delete;
  ResultFollower& operator=(const ResultFollower&) = delete;

  // False: the method's results do not determine the parameters (shared state, local steps), so the
  // parameters must travel. The functions below then throw InvalidArgument.
  bool suffices() const noexcept;

  // After a step of `own`: the size of the results of the same step.
  std::size_t bytes() const;
  // Applies them to `params`, with the scalars of the last step of `own`. The bits are those of the
  // other rank. frozen[i]: tensor i was frozen there; empty: none. REQUIRES: float32 parameters.
  // Throws CommError, and has changed nothing, if the bytes are damaged or of another step; the
  // text names the first tensor and the bucket.
  void apply(const Parameters& params, std::span<const bool> frozen,
             std::span<const std::byte> results);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pride
