// SPDX-License-Identifier: Apache-2.0
#include "optimizer/bucket_step.h"

#include <algorithm>
#include <utility>

#include "kernels/kernels.h"
#include "methods/mean_gradient.h"

namespace pride {

void BucketStep::encode_preliminary(const StepContext& ctx, GradientView grads,
                                    const std::optional<Part>& part) {
  if (part) size_frames(*part, ctx, preliminary_);
  method_.encode_preliminary(ctx, grads, preliminary_);
}

void BucketStep::encode(std::size_t bucket, const StepContext& ctx, GradientView grads,
                        Flight& flight, const StepContext* lasting) const {
  flight.grad = grads;
  flight.non_finite.reset();
  flight.pack = {};
  flight.parts = method_.parts(buckets_[bucket], ctx);
  flight.wires.resize(std::max(flight.wires.size(), flight.parts.size()));
  for (std::size_t k = 0; k < flight.parts.size(); ++k) {
    size_frames(flight.parts[k], lasting != nullptr ? *lasting : ctx, flight.wires[k]);
  }
  method_.encode(buckets_[bucket], ctx, flight);
  flight.encoded = space_.record();
}

void BucketStep::finish_frames(const StepContext& ctx, Flight& flight) const {
  if (flight.parts.empty()) return;
  space_.wait(flight.encoded);
  for (std::size_t k = 0; k < flight.parts.size() && !space_.is_host(); ++k) {
    mark_unused(flight.parts[k], flight.wires[k]);  // whose bits a device's copy has overwritten
  }
  if (flight.pack) flight.pack(flight);
  for (std::size_t k = 0; k < flight.parts.size(); ++k) {
    Wire& wire = flight.wires[k];
    const std::uint32_t fault = std::exchange(wire.fault_word(), Wire::kNoTensor);
    if (wire.non_finite || fault == Wire::kNoTensor) continue;
    wire.non_finite = NonFinite{ctx.rank, fault};
  }
}

void BucketStep::make_room(std::size_t bucket, const StepContext& ctx, Flight& flight) const {
  flight.parts = method_.parts(buckets_[bucket], ctx);
  flight.wires.resize(std::max(flight.wires.size(), flight.parts.size()));
  for (std::size_t k = 0; k < flight.parts.size(); ++k) {
    const Part& part = flight.parts[k];
    Wire& wire = flight.wires[k];
    wire.down.resize(part.shards.size());
    wire.down_body.resize(part.shards.size());
    for (std::size_t j = 0; j < part.shards.size(); ++j) {
      wire.down[j].resize(part.down.bytes(part.shards[j]), space_);
    }
  }
}

// Sums blocks of 64 coordinates in the order of the layout, so that the sum does not depend on the
// buckets. Bucket 0 is the layout's end.
double BucketStep::mean_squares(std::span<const Flight> flights) const {
  double squares = 0;
  for (std::size_t b = buckets_.size(); b-- > 0;) {
    method_.mean_gradient()->visit(buckets_[b],
                                   flights[static_cast<std::size_t>(buckets_[b].index)],
                                   [&](std::span<const float> g) {
                                     for (std::size_t i = 0; i < g.size(); i += kAlignment) {
                                       squares += kernels::sum_squares(g.subspan(i, kAlignment));
                                     }
                                   });
  }
  return squares;
}

}  // namespace pride
