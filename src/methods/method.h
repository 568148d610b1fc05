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
#include "pride/device.h"
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
  Nodes nodes = {};                  // if known, methods that can use the hierarchical route
  Space& space = Space::host();      // of parameters, gradients and state
  Orthogonalise orthogonalise = {};  // on a device
};

// A bucket in flight during a step.
struct Flight {
  GradientView grad;        // this rank's, in place; unchanged until the step ends
  std::vector<Part> parts;  // of this step
  std::vector<Wire> wires;  // one for each part, or more, to keep their memory
  std::optional<NonFinite> non_finite;
  Space::Event encoded = 0;  // frames are complete after wait() for it

  // By the part's index; or by its id, null if the step has no such part.
  Wire& wire(std::size_t part) { return wires[part]; }
  const Wire& wire(std::size_t part) const { return wires[part]; }
  Wire* find(int id);
  const Wire* find(int id) const;
  const Part& part(int id) const;  // REQUIRES: there is one
  std::size_t capacity_bytes() const noexcept;
};

// Results of a completed step, equal on all ranks except `alone`.
struct StepNotes {
  // This rank skipped the step because its gradient was not finite; no other rank did.
  std::optional<NonFinite> alone = {};
  // Dropped in this step, from the exchange begun in dropped_step.
  std::optional<NonFinite> dropped = {};
  std::int64_t dropped_step = 0;
};

class Method : public Server {
 public:
  // Properties of a whole step, and the parts of a bucket in exchange order. They depend on the
  // method's options and plan and on the round, never on gradients.
  virtual Protocol protocol(const Round& round) const = 0;
  virtual std::vector<Part> parts(const Bucket& bucket, const Round& round) const = 0;

  // Worker, with Protocol::whole_gradient, before any bucket is encoded: local arithmetic over the
  // whole gradient. With Protocol::before it also fills that part's frames, and take_before() gets
  // their result.
  virtual void prepare(const StepContext&, GradientView /*grad*/, Wire& /*before*/) {}
  virtual void take_before(const StepContext&, const Wire& /*before*/) {}

  // Worker, with Protocol::by_tensor: local work that needs a whole tensor. Called when its
  // gradient is complete, before any bucket with a part of it is encoded. Not called for unused
  // tensors.
  virtual void tensor_ready(std::size_t /*tensor*/, const StepContext&, GradientView /*grad*/) {}

  // Worker: local arithmetic, local state. Fills the frames of all parts, whose sizes and unused
  // bits are set. If values are not finite, sets the wire's non_finite or its fault word.
  virtual void encode(const Bucket& bucket, const StepContext& ctx, Flight& flight) = 0;

  // Host memory for frames that are in no flight.
  virtual std::size_t frame_bytes() const noexcept { return 0; }

  // Worker, between encode() and the exchange of a bucket, on the thread that exchanges it: what a
  // device has written for the flight is in host memory now.
  virtual void end_bucket(const StepContext&, Flight&) {}

  // Worker, after the last encode() of a step: frees memory that apply() does not read. N virtual
  // workers would hold it N times. Need not be called.
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
  // With Protocol::delay: arrive() gets the result of a bucket; drop() drops all buckets of a step
  // if one is not finite. Called between steps, or before apply() of the step that ends the delay,
  // with the context of the step that began the exchange. apply() then gets no result.
  virtual void arrive(const Bucket&, const Flight&, const StepContext& /*begun*/) {}
  virtual void drop(const StepContext& /*begun*/, const NonFinite&) {}

  // With Protocol::mean_gradient, between exchange and apply: visits the bucket's mean gradient in
  // ascending blocks, padding included. apply() multiplies it by ctx.grad_scale.
  using VisitBlock = std::function<void(std::span<const float> g)>;
  virtual void visit_mean_gradient(const Bucket&, const Flight&, const VisitBlock&) const {}

  // Called before the first step, and before the first after a load or an addition of tensors.
  // Returns the parameters that must be equal on all ranks. A method with local steps copies those
  // of tensors that it does not hold yet.
  virtual View begin(View x) { return x; }

  // Between steps: x becomes the common parameters, and the drift is dropped.
  virtual void rebase(ConstView /*x*/) {}

  // Between steps, with local steps: x = the common parameters; and back to this rank's own.
  // Tensors in `frozen` (StepContext::frozen) do not change.
  virtual void to_common(View /*x*/, std::span<const char> /*frozen*/) const {}
  virtual void to_local(View /*x*/, std::span<const char> /*frozen*/) const {}

  // describe() enters what the method's options change in its MethodInfo. exchanging_steps(): the
  // steps of a period with an exchange, ascending.
  virtual void describe(MethodInfo&) const {}
  virtual std::vector<std::int64_t> exchanging_steps() const { return {0}; }

  // Throws InvalidArgument if tensors cannot be added after the first step.
  virtual void check_can_grow() const {}

  // Multiplications and additions of a rank on whole matrices, per step, averaged over steps. They
  // do not depend on the number of coordinates alone.
  virtual double matrix_operations() const { return 0; }

  // By tensor; empty: the method orthogonalises nothing.
  virtual std::vector<MatrixForm> matrices() const { return {}; }

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

// MethodInfo::period, the number of steps after which costs repeat; and the steps with an exchange
// in the period that `step` is in. A bucket has parts in one of them.
std::int64_t period_of(const Method& method);
std::vector<std::int64_t> exchanging_steps(const Method& method, std::int64_t step);

// The bucket's parts in the one step of the period that has them.
std::vector<Part> parts_in_period(const Method& method, const Bucket& bucket, Round round);

// step_costs(), averaged over the period and rounded up.
std::vector<Cost> mean_costs(const Method& method, std::span<const Bucket> buckets,
                             const Round& round, const Nodes& nodes);

}  // namespace pride
