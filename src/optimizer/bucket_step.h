// BucketStep: a step of a method, bucket by bucket. Every front door encodes and applies through
// it, and moves the frames in between in its own way.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "methods/local_parameters.h"

namespace pride {

class BucketStep {
 public:
  // All must outlive this object.
  BucketStep(Method& method, const std::vector<Bucket>& buckets, Space& space)
      : method_(method), buckets_(buckets), space_(space) {}

  std::size_t size() const noexcept { return buckets_.size(); }

  // With Protocol::whole_gradient, before the first encode(): fills preliminary() with the frames
  // of `part` (Protocol::preliminary), if there is one. take_preliminary() then takes their result
  // from there.
  void encode_preliminary(const StepContext& ctx, GradientView grads,
                          const std::optional<Part>& part);
  void take_preliminary(const StepContext& ctx) const {
    method_.take_preliminary(ctx, preliminary_);
  }
  Wire& preliminary() noexcept { return preliminary_; }

  // Momenta and frames of the bucket. Frames keep a reference to the flags of unused tensors: those
  // of `lasting`, which is ctx but for its memory, if ctx does not live as long as the flight.
  void encode(std::size_t bucket, const StepContext& ctx, GradientView grads, Flight& flight,
              const StepContext* lasting = nullptr) const;
  // On the thread that exchanges the bucket, before it does: waits until its frames are complete,
  // then sets the non-finite flags that kernels found.
  void finish_frames(const StepContext& ctx, Flight& flight) const;
  // For results that come without encode(): the flight's parts, and memory for their results.
  void make_room(std::size_t bucket, const StepContext& ctx, Flight& flight) const;

  // Changes the parameters x by the bucket's result, and commits the state of this rank's servers.
  void apply(std::size_t bucket, const Flight& flight, const StepContext& ctx, View x) const {
    method_.apply(buckets_[bucket], flight, ctx, x);
  }
  // The same for a result of other workers' frames alone: this one has missed the step.
  void replay(std::size_t bucket, const Flight& flight, const StepContext& ctx, View x) const {
    LocalParameters* const local = method_.local();
    local ? local->replay(buckets_[bucket], flight, ctx, x)
          : method_.apply(buckets_[bucket], flight, ctx, x);
  }
  // With Protocol::delay: the method keeps the result until the step that adopts it.
  void keep_result(std::size_t bucket, const Flight& flight, const StepContext& begun) const {
    method_.local()->arrive(buckets_[bucket], flight, begun);
  }

  // Sum of squares of the step's mean gradient. Every rank has that gradient, so nothing is sent.
  // REQUIRES: Method::mean_gradient(), and flights by Bucket::index, exchanged.
  double mean_squares(std::span<const Flight> flights) const;

 private:
  Method& method_;
  const std::vector<Bucket>& buckets_;
  Space& space_;
  Wire preliminary_;
};

}  // namespace pride
