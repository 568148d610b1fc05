// BucketStep: a worker's half of a step, bucket by bucket: whatever makes steps encodes, applies
// and settles through it. Exchangers move the frames between encode() and apply().
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "methods/local_parameters.h"

namespace pride {

class BucketStep {
 public:
  // All must outlive this object.
  BucketStep(Method& method, std::span<const Bucket> buckets, Space& space)
      : method_(method), buckets_(buckets), space_(space) {}

  std::size_t size() const noexcept { return buckets_.size(); }

  // With Protocol::whole_gradient, before the first encode(): fills before() with the frames of the
  // part Protocol::before, if there is one. take_before() then takes their result from there.
  void prepare(const StepContext& ctx, GradientView grads, const std::optional<Part>& part);
  void take_before(const StepContext& ctx) const { method_.take_before(ctx, before_); }
  Wire& before() noexcept { return before_; }

  // Encodes the bucket into the flight. `sent`: the context whose flags of unused tensors live as
  // long as the flight, if not ctx.
  void encode(std::size_t bucket, const StepContext& ctx, GradientView grads, Flight& flight,
              const StepContext* sent = nullptr) const;
  // On the thread that exchanges the bucket, before: waits until its frames are complete, then sets
  // the non-finite flags that kernels found.
  void complete(const StepContext& ctx, Flight& flight) const;
  // For results that come without encode(): the flight's parts, and memory for their results.
  void expect(std::size_t bucket, const StepContext& ctx, Flight& flight) const;

  // Commits the bucket's result, and the state of this rank's servers.
  void apply(std::size_t bucket, const Flight& flight, const StepContext& ctx, View x) const {
    method_.apply(buckets_[bucket], flight, ctx, x);
  }
  // The same for a result without this rank's frames.
  void replay(std::size_t bucket, const Flight& flight, const StepContext& ctx, View x) const {
    LocalParameters* const local = method_.local();
    local ? local->replay(buckets_[bucket], flight, ctx, x)
          : method_.apply(buckets_[bucket], flight, ctx, x);
  }
  // The same for a result that the method keeps until it adopts it.
  void arrive(std::size_t bucket, const Flight& flight, const StepContext& begun) const {
    method_.local()->arrive(buckets_[bucket], flight, begun);
  }

  // Sum of squares of the step's mean gradient. Every rank has that gradient, so nothing is sent.
  // REQUIRES: Method::mean_gradient(), and a flight for each bucket, exchanged.
  double mean_squares(std::span<const Flight> flights) const;

 private:
  Method& method_;
  std::span<const Bucket> buckets_;
  Space& space_;
  Wire before_;
};

}  // namespace pride
