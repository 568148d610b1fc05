// LocalParameters: a method between whose exchanges each rank has parameters of its own: the common
// ones plus its drift.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "methods/method.h"

namespace pride {

// Results of a completed step, equal on all ranks except `alone`.
struct StepNotes {
  // This rank skipped the step because its gradient was not finite; no other rank did.
  std::optional<NonFinite> alone = {};
  // Dropped in this step, from the exchange begun in dropped_step.
  std::optional<NonFinite> dropped = {};
  std::int64_t dropped_step = 0;
};

// Method::apply() only writes the parameters: it computes them from the common ones and the drift.
class LocalParameters {
 public:
  virtual ~LocalParameters() = default;

  // Before the first step or replay, and before the first after a load, an error or an addition of
  // tensors: copies the parameters of tensors that have no common ones yet.
  virtual void begin(ConstView x) = 0;

  // The common parameters. Those of tensors that have none yet are x's. `room` keeps addresses.
  virtual ConstView common(View x, std::vector<ParameterPlace>& room) const = 0;

  // Between steps: x becomes the common parameters, and the drift is dropped.
  virtual void rebase(ConstView x) = 0;

  // Between steps: x = the common parameters; and back to this rank's own. Tensors in `frozen`
  // (StepContext::frozen) do not change.
  virtual void to_common(View x, std::span<const char> frozen) const = 0;
  virtual void to_local(View x, std::span<const char> frozen) const = 0;

  // Method::apply() of a step that this rank has not encoded, or whose frames were not served. The
  // drift since the last exchange is dropped, other local state stays.
  // REQUIRES: Protocol::replays, and results in the flight's wires.
  virtual void replay(const Bucket& bucket, const Flight& flight, const StepContext& ctx,
                      View x) = 0;

  // With Protocol::delay: arrive() gets the result of a bucket; drop() drops all buckets of a step
  // if one is not finite. Called between steps, or before apply() of the step that ends the delay,
  // with the context of the step that began the exchange. apply() then gets no result.
  virtual void arrive(const Bucket& bucket, const Flight& flight, const StepContext& begun) = 0;
  virtual void drop(const StepContext& begun, const NonFinite& why) = 0;

  // After the last apply of a completed step.
  virtual StepNotes end_step(const StepContext& ctx) = 0;
};

}  // namespace pride
