// Optimizer: one data-parallel training step. Start here.
// SPDX-License-Identifier: Apache-2.0
//
//   pride::Layout layout({{"weight", {512, 512}}, {"bias", {512}}});
//   pride::Optimizer optimizer(comm, layout, {.method = "dlion-vote"});
//   for (...) { compute grads; optimizer.step(params.span(), grads.span()); }
//
// Gradients are this rank's own. Do not average them over the ranks. All that concerns parameters
// and state, such as groups, save() and load(), is in pride/replica.h. One process that plays
// several ranks: pride/virtual_workers.h. Workers that join and leave: pride/run_worker.h.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "pride/communicator.h"
#include "pride/layout.h"
#include "pride/replica.h"
#include "pride/tensors.h"

namespace pride {

class Optimizer : public Replica {
 public:
  // Collective: the ranks compare layout, method and options. If one differs, all throw an
  // InvalidArgument that names it. `comm` must outlive the optimizer, which makes duplicates of it
  // with the present timeout.
  Optimizer(Communicator& comm, Layout layout, OptimizerOptions options);

  // Copies rank 0's parameters to all ranks. Collective. Call it before the first forward if ranks
  // may start with different parameters.
  void broadcast(const Parameters& params);

  // One step with the gradients of this rank's batch. Collective. `params` must be equal on all
  // ranks, and are equal afterwards (with local steps: to_common()). The first step, and the first
  // after load() or add(), compares a hash. If ranks differ from rank 0, all throw an
  // InvalidArgument that names them. unused[i]: tensor i has no gradient on this rank; an empty
  // span: all have one. A tensor that no rank uses only decays. bfloat16 and float16 gradients are
  // widened exactly. REQUIRES: padding of flat gradients is zero.
  //
  // InvalidArgument is thrown before the step begins. Any other exception leaves parameters and
  // state in the middle of the step. After NonFiniteGradient load a state. After others (CommError,
  // no memory) the communicator has failed on all ranks, with this rank's reason.
  StepReport step(const Parameters& params, const Gradients& grads,
                  std::span<const bool> unused = {});

  // The same step in parts, to overlap with backward. Call begin_step(), then gradient_ready() for
  // each tensor when its gradient is complete, in any order, then finish_step(). A bucket starts
  // when all its tensors are ready. Give the gradients either to begin_step() or to
  // gradient_ready(); there nullopt stands for the gradient that begin_step() was given, and a null
  // address for a tensor that is not used. They must stay in place until finish_step() returns.
  void begin_step(const Parameters& params, const std::optional<Gradients>& grads = {});
  void gradient_ready(std::size_t tensor, const std::optional<ConstTensor>& grad = {});
  StepReport finish_step();  // tensors not reported ready are unused
  // In a step with overlap: the tensors whose gradients have been encoded since the last call. They
  // are not read again, so the caller may free them. Empty for methods that read gradients later.
  std::vector<std::size_t> take_released();

  // For loss scalers; affects only the next step. Call it on all ranks or on none. Gradients are
  // also multiplied by *factor, after set_gradient_factor()'s, in float32; null: by 1. *factor is
  // in the gradients' memory and is read with them. If a gradient is not finite, all ranks skip the
  // step, whatever OptimizerOptions::non_finite says, and it does not count in steps_done(). Frames
  // carry the non-finite flag, so nothing waits for it alone. Throws InvalidArgument with local
  // steps, where ranks do not see the flag.
  void scale_next_step(const float* factor);

  // Between steps: appends tensors and groups. Collective. Old tensors keep their coordinates and
  // state; new ones start with zeros. Adam's bias correction of a new group starts with its first
  // step. Later calls get params and grads of the new layout(); references to the old layout are
  // invalid. Throws InvalidArgument on all ranks, and has changed nothing, if ranks differ or a
  // tensor is refused. After the first step onebit-adam and the options `fragments` and `delay`
  // always refuse.
  void add(std::vector<TensorSpec> tensors, std::vector<ParamGroup> groups = {});

  // With the option `delay`: waits for exchanges in flight and returns their bytes. A report has
  // the bytes of the exchange whose result it adopts, so no report has those of a run's last
  // exchanges. Between steps. Not collective. Throws as to_common().
  Traffic finish_exchanges();

  // The results of the last step, until the next one, for followers (pride/result_follower.h).
  // Empty: the step was skipped, or the optimizer has no follower. Byte layout:
  // docs/wire_format.md.
  std::span<const std::byte> results() const;

 private:
  friend class ResultFollower;
  struct Impl;
  Impl& impl() const noexcept;
};

}  // namespace pride
