// Method: a worker encodes, a server serves, a worker applies. Each method is one file here.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/state_table.h"
#include "base/step.h"
#include "kernels/space.h"
#include "pride/communicator.h"
#include "pride/device.h"
#include "pride/diagnostics.h"
#include "pride/nodes.h"
#include "pride/registry.h"
#include "routes/protocol.h"
#include "routes/routes.h"

namespace pride {

// Arguments of a method's constructor. `options` holds every option that the method declares.
struct MethodContext {
  const Layout& layout;
  int world = 1;
  std::map<std::string, std::string> options;
  Nodes nodes = {};                  // known: the method takes the hierarchical route, if it can
  Space& space = Space::host();      // of parameters, gradients and state
  Orthogonalise orthogonalise = {};  // on a device
};

// A bucket in flight during a step.
struct Flight {
  GradientView grad;        // of this rank, where they lie; unchanged until the step is over
  std::vector<Part> parts;  // of this step
  std::vector<Wire> wires;  // one for each part, or more, to keep their memory
  std::optional<NonFinite> non_finite;
  Space::Event encoded = 0;  // frames are complete once it was waited for

  // By the part's number, or by its id: null if the step has no such part.
  Wire& wire(std::size_t part) { return wires[part]; }
  const Wire& wire(std::size_t part) const { return wires[part]; }
  Wire* find(int id);
  const Wire* find(int id) const;
  const Part& part(int id) const;  // REQUIRES: there is one
  std::size_t capacity_bytes() const noexcept;
};

// Results of a completed step, equal on all ranks except `alone`.
struct StepNotes {
  std::vector<TensorDiagnostics> diagnostics = {};
  std::string note = {};  // the decision taken, a line for the log
  // This rank skipped the step because its gradient was not finite; no other rank did.
  std::optional<NonFinite> alone = {};
  // Dropped in this step, from the exchange begun in dropped_step.
  std::optional<NonFinite> dropped = {};
  std::int64_t dropped_step = 0;
};

class Method : public Server {
 public:
  // Properties of a whole step, and the parts of a bucket in exchange order. A function of the
  // method's options and plan, and of the round: never of gradients.
  virtual Protocol protocol(const Round& round) const = 0;
  virtual std::vector<Part> parts(const Bucket& bucket, const Round& round) const = 0;

  // Worker, before any bucket is encoded, if the protocol requires it: local arithmetic over the
  // whole gradient, and the part `before`. Collective.
  virtual void prepare(Communicator&, const StepContext&, GradientView /*grad*/) {}

  // Worker, when the gradient of a tensor is complete, before any bucket with a part of it is
  // encoded, with Protocol::by_tensor: what needs whole tensors and no other rank. Not for unused
  // tensors.
  virtual void tensor_ready(std::size_t /*tensor*/, const StepContext&, GradientView /*grad*/) {}

  // Worker: local arithmetic, local state. Fills the frames of all parts, which have their sizes
  // and unused bits, and a wire's non_finite or its fault word if its values are not finite.
  virtual void encode(const Bucket& bucket, const StepContext& ctx, Flight& flight) = 0;

  // Worker, after the last encode() of a step: frees what apply() does not read, which virtual
  // workers would have N times. Need not be called.
  virtual void end_encode(const StepContext&) {}

  // Server: commits the pending state of Server::serve(). Not called for a dropped step.
  virtual void settle(const Part&, const Shard&, std::span<const float> /*pending*/) {}

  // Worker: commits the step of this bucket. REQUIRES: all is finite.
  virtual void apply(const Bucket& bucket, const Flight& flight, const StepContext& ctx,
                     View param) = 0;

  // Worker: the same for a step that it has not encoded, or whose frames were not served. Local
  // state stays; a drift since the last exchange is dropped.
  // REQUIRES: Protocol::replays, and results in the flight's wires.
  virtual void replay(const Bucket& bucket, const Flight& flight, const StepContext& ctx, View x) {
    apply(bucket, flight, ctx, x);
  }
  // With Protocol::delay, between steps or before apply() of the step that it ends in, with the
  // context of the step in which the exchange was begun: takes the result of a bucket; or, if one
  // of that step's buckets is not finite, drops them all. apply() of such a method takes no result.
  virtual void arrive(const Bucket&, const Flight&, const StepContext& /*begun*/) {}
  virtual void drop(const StepContext& /*begun*/, const NonFinite&) {}

  // With Protocol::mean_gradient, between exchange and apply: visits the bucket's mean gradient in
  // ascending blocks, padding included. apply() takes it times ctx.grad_scale.
  using VisitBlock = std::function<void(std::span<const float> g)>;
  virtual void visit_mean_gradient(const Bucket&, const Flight&, const VisitBlock&) const {}

  // Before the first step, and the first after a load or after tensors were added: the parameters
  // that must be equal on all ranks. A method whose ranks have parameters of their own between
  // exchanges takes over those of tensors that it does not hold yet.
  virtual View begin(View x) { return x; }

  // Between steps: makes x the common parameters and drops a drift.
  virtual void rebase(ConstView /*x*/) {}

  // Between steps, of such a method: x = the common parameters, or back to this rank's own. Frozen
  // tensors, by StepContext::frozen, stay as they are.
  virtual void to_common(View /*x*/, std::span<const char> /*frozen*/) const {}
  virtual void to_local(View /*x*/, std::span<const char> /*frozen*/) const {}

  // Changes that the method's options make in its period and in the defaults of its scalars; and
  // the steps of a period in which it exchanges, ascending.
  virtual void describe(MethodInfo&) const {}
  virtual std::vector<std::int64_t> exchanging_steps() const { return {0}; }

  // Throws InvalidArgument if tensors cannot be added once steps were taken.
  virtual void check_can_grow() const {}

  // Multiplications and additions of a rank in a step, on whole matrices: arithmetic that does not
  // grow with the number of coordinates alone. Mean over the steps.
  virtual double matrix_operations() const { return 0; }

  // After the last apply of a completed step.
  virtual StepNotes end_step(const StepContext&) { return {}; }

  virtual StateTable& state() noexcept { return state_; }
  const StateTable& state() const noexcept { return const_cast<Method*>(this)->state(); }

 protected:
  StateTable state_;
};

// Cost for each rank of a step over these buckets.
std::vector<Cost> step_costs(const Method& method, std::span<const Bucket> buckets,
                             const Round& round, const Nodes& nodes);

// Steps after which costs repeat, MethodInfo::period; and of the period that `step` is in the
// steps that exchange. A bucket has parts in one of them.
std::int64_t period_of(const Method& method);
std::vector<std::int64_t> exchanging_steps(const Method& method, std::int64_t step);

// The bucket's parts in that step.
std::vector<Part> parts_in_period(const Method& method, const Bucket& bucket, Round round);

// The same as step_costs(), mean over that period, rounded up.
std::vector<Cost> mean_costs(const Method& method, std::span<const Bucket> buckets,
                             const Round& round, const Nodes& nodes);

}  // namespace pride
