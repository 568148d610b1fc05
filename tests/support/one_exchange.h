// One exchange of one part, or of all buckets of a method, with frames that a test fills.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>

#include "base/bucket.h"
#include "methods/method.h"
#include "routes/routes.h"

namespace pride::testing {

// A server that is one function.
class ServeBy final : public Server {
 public:
  using Serve = std::function<void(const Shard&, const VoterFrames&, const SharedContext&, Reply&)>;
  explicit ServeBy(Serve serve) : serve_(std::move(serve)) {}
  void serve(const Part&, const Shard& shard, const VoterFrames& up, const SharedContext& shared,
             Reply& reply) const override {
    serve_(shard, up, shared, reply);
  }

 private:
  Serve serve_;
};

// `unused` must outlive the context.
inline StepContext context(const Communicator& comm, std::span<const char> unused) {
  StepContext ctx;
  ctx.rank = comm.rank();
  ctx.voters = comm.size();
  ctx.unused = unused;
  return ctx;
}

// A step over all buckets in order, with `encode` instead of the method's.
using Encode = std::function<void(const Bucket&, Flight&)>;
inline std::optional<NonFinite> one_step(Communicator& comm, Method& method, const Layout& layout,
                                         std::size_t bucket_coords, const StepContext& ctx,
                                         const Encode& encode, View x) {
  Flight flight;  // for all buckets in turn: a bucket must not depend on the previous one
  Scratch scratch;
  const auto alignment = method.protocol(ctx).alignment;
  for (const Bucket& bucket : make_buckets(layout, bucket_coords, comm.size(), alignment)) {
    flight.parts = method.parts(bucket, ctx);
    flight.wires.resize(std::max(flight.wires.size(), flight.parts.size()));
    for (std::size_t k = 0; k < flight.parts.size(); ++k) {
      size_frames(flight.parts[k], ctx, flight.wires[k]);
    }
    encode(bucket, flight);
    if (flight.pack) flight.pack(flight);
    for (std::size_t k = 0; k < flight.parts.size(); ++k) {
      exchange(comm, method, flight.parts[k], ctx, {}, scratch, flight.wires[k]);
      if (flight.wires[k].non_finite) return flight.wires[k].non_finite;
    }
    method.apply(bucket, flight, ctx, x);
  }
  return std::nullopt;
}

}  // namespace pride::testing
