// What the uncompressed methods share: the mean gradient, and an ordinary optimizer's rule on it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "exchange/dense_mean.h"
#include "pride/method.h"
#include "pride/registry.h"

namespace pride::methods {

// The option `dense`: who adds up the gradients, and what is sent. Throws InvalidArgument, naming
// the method, unless "ordered", "native" or "bf16".
exchange::Dense dense_rule(const std::string& method, const std::string& name);
MethodOption dense_option();

// Fills the frames and checks that what this rank sends is finite.
void encode_dense(const Bucket& bucket, ConstView grad, const StepContext& ctx, exchange::Dense how,
                  Wire& wire);

// A method on the mean gradient: a class of its own has a rule, state, and nothing else.
class DenseMethod : public Method {
 public:
  DenseMethod(const std::string& name, const MethodContext& ctx)
      : dense_(dense_rule(name, ctx.options.at("dense"))) {}

  void encode(const Bucket& b, ConstView g, const StepContext& ctx, Wire& w) override;
  void exchange(Communicator& c, const Bucket& b, const StepContext& ctx, Wire& w) override;
  void apply(const Bucket& b, const Wire& w, const StepContext& ctx, View x) override;
  Cost cost(std::span<const Bucket> buckets, int rank, std::int64_t step) const override;
  bool has_mean_gradient() const noexcept override { return true; }
  std::span<float> mean_gradient(const Bucket& b, Wire& w) const override;

 protected:
  // One step of a piece for its mean gradient g; g and x have piece.n() floats. A tensor without a
  // gradient on any rank only decays, and does not come here.
  virtual void step_piece(const Piece& piece, std::span<const float> g, const StepScalars& s,
                          std::span<float> x) = 0;

 private:
  exchange::Dense dense_;
};

}  // namespace pride::methods
