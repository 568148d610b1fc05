// Method: a worker encodes, a server serves, a worker applies. Each method is one file here.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/state_table.h"
#include "base/step.h"
#include "kernels/space.h"
#include "methods/options.h"
#include "pride/device.h"
#include "pride/nodes.h"
#include "pride/registry.h"
#include "routes/protocol.h"
#include "routes/routes.h"

namespace pride {

class LocalParameters;  // methods/local_parameters.h
class MeanGradient;     // methods/mean_gradient.h

// Arguments of a method's constructor. `options` holds every option that the method declares.
struct MethodContext {
  const Layout& layout;
  int world = 1;
  OptionValues options;
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
  // Set by encode() if frames need host work once a device has written them. Called on the thread
  // that exchanges the bucket.
  std::function<void(Flight&)> pack = {};

  // By the part's index; or by its id, null if the step has no such part.
  Wire& wire(std::size_t part) { return wires[part]; }
  const Wire& wire(std::size_t part) const { return wires[part]; }
  Wire* find(int id);
  const Wire* find(int id) const;
  const Part& part(int id) const;  // REQUIRES: there is one
  std::size_t capacity_bytes() const noexcept;
};

// Facts that a method's constructor sets. Those that depend on options alone are in MethodInfo.
struct MethodFacts {
  // Multiplications and additions of a rank on whole matrices, per step, averaged over steps. They
  // do not depend on the number of coordinates alone.
  double matrix_operations = 0;
  std::vector<MatrixForm> matrices = {};  // by tensor; empty: the method orthogonalises nothing
  std::string cannot_grow = {};  // error if tensors are added after the first step; empty: they can
  std::size_t frame_bytes = 0;   // host memory for frames that are in no flight; may change
  // MethodInfo::period, and the steps of a period with an exchange, ascending. A bucket has parts
  // in one of them.
  std::int64_t period = 1;
  std::vector<std::int64_t> exchanging_steps = {0};
};

class Method : public Server {
 public:
  Method() = default;
  Method(const Method&) = delete;
  Method& operator=(const Method&) = delete;

  // Properties of a whole step, and the parts of a bucket in exchange order. They depend on the
  // method's options and layout and on the step, never on gradients.
  virtual Protocol protocol(const SharedContext& shared) const = 0;
  virtual std::vector<Part> parts(const Bucket& bucket, const SharedContext& shared) const = 0;

  // Worker, with Protocol::whole_gradient, before any bucket is encoded: local arithmetic over the
  // whole gradient. With Protocol::preliminary it also fills that part's frames, and
  // take_preliminary() gets their result.
  virtual void encode_preliminary(const StepContext&, GradientView /*grad*/,
                                  Wire& /*preliminary*/) {}
  virtual void take_preliminary(const StepContext&, const Wire& /*preliminary*/) {}

  // Worker: local work that needs a whole tensor. Called when its gradient is complete, before any
  // bucket with a part of it is encoded. Not called for unused tensors.
  virtual void tensor_ready(std::size_t /*tensor*/, const StepContext&, GradientView /*grad*/) {}

  // Worker: local arithmetic, local state. Fills the frames of all parts, whose sizes and unused
  // bits are set. If values are not finite, sets the wire's non_finite or its fault word.
  virtual void encode(const Bucket& bucket, const StepContext& ctx, Flight& flight) = 0;

  // Worker: commits the step of this bucket, and Wire::pending of this rank's server. Not called
  // for a dropped step. REQUIRES: all is finite.
  virtual void apply(const Bucket& bucket, const Flight& flight, const StepContext& ctx,
                     View param) = 0;

  const MethodFacts& facts() const noexcept { return facts_; }
  // Null: the method has no such interface.
  LocalParameters* local() noexcept { return local_; }
  const LocalParameters* local() const noexcept { return local_; }
  const MeanGradient* mean_gradient() const noexcept { return mean_gradient_; }

  StateTable& state() noexcept { return state_; }
  const StateTable& state() const noexcept { return state_; }

 private:
  StateTable own_state_;

 protected:
  // For a method around another one, which must outlive it: has its state table, and copies of its
  // facts and interfaces, to be changed.
  explicit Method(Method& inner)
      : state_(inner.state_),
        facts_(inner.facts_),
        local_(inner.local_),
        mean_gradient_(inner.mean_gradient_) {}

  StateTable& state_ = own_state_;
  MethodFacts facts_;
  LocalParameters* local_ = nullptr;
  const MeanGradient* mean_gradient_ = nullptr;
};

// Cost for each rank of a step over these buckets.
std::vector<Cost> step_costs(const Method& method, std::span<const Bucket> buckets,
                             const SharedContext& shared, const Nodes& nodes);

// The steps with an exchange in the period that `step` is in.
std::vector<std::int64_t> exchanging_steps(const Method& method, std::int64_t step);

// The bucket's parts in the one step of the period that has them.
std::vector<Part> parts_in_period(const Method& method, const Bucket& bucket, SharedContext shared);

// step_costs(), averaged over the period and rounded up.
std::vector<Cost> mean_costs(const Method& method, std::span<const Bucket> buckets,
                             const SharedContext& shared, const Nodes& nodes);

}  // namespace pride
