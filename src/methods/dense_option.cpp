// What the uncompressed methods share.
// SPDX-License-Identifier: Apache-2.0
#include "methods/dense_option.h"

#include "kernels/kernels.h"
#include "pride/error.h"

namespace pride::methods {

exchange::Dense dense_rule(const std::string& method, const std::string& name) {
  if (name == "ordered") return exchange::Dense::kOrdered;
  if (name == "native") return exchange::Dense::kNative;
  throw InvalidArgument(concat(method, ": option dense = '", name, "': choose ordered or native"));
}

MethodOption dense_option() {
  return {"dense", "ordered",
          "sum of gradients: 'ordered' adds in rank order, the same bits on every transport; "
          "'native' is the transport's own all-reduce"};
}

void encode_dense(const Bucket& bucket, ConstView grad, const StepContext& ctx, exchange::Dense how,
                  Wire& wire) {
  exchange::prepare_dense(bucket, ctx, how, grad, wire);
  wire.poison.reset();
  for (const Shard& shard : bucket.shards) {
    for (const Piece& piece : shard.pieces) {
      if (ctx.is_absent(piece.tensor) || wire.poison) continue;
      if (kernels::first_non_finite(grad.f32(piece.begin, piece.end)) != kernels::kAllFinite) {
        wire.poison = Poison{ctx.rank, static_cast<std::uint32_t>(piece.tensor)};
      }
    }
  }
}

}  // namespace pride::methods
