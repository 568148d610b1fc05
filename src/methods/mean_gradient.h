// MeanGradient: a method that has the mean of the ranks' gradients between exchange and apply.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>

#include "methods/method.h"

namespace pride {

class MeanGradient {
 public:
  virtual ~MeanGradient() = default;

  // Visits the bucket's mean gradient in ascending blocks, padding included. Method::apply()
  // multiplies it by ctx.grad_scale.
  using VisitBlock = std::function<void(std::span<const float> g)>;
  virtual void visit(const Bucket& bucket, const Flight& flight, const VisitBlock& visit) const = 0;
};

// A sum over the ranks that is not finite at value `index` of the shard, padding included.
NonFinite overflow_at(const Shard& shard, std::size_t index);

}  // namespace pride
