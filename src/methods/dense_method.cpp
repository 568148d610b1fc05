// What the uncompressed methods share.
// SPDX-License-Identifier: Apache-2.0
#include "methods/dense_method.h"

#include "core/floats_of.h"
#include "kernels/kernels.h"
#include "pride/error.h"

namespace pride::methods {

exchange::Dense dense_rule(const std::string& method, const std::string& name) {
  if (name == "ordered") return exchange::Dense::kOrdered;
  if (name == "native") return exchange::Dense::kNative;
  if (name == "bf16") return exchange::Dense::kBf16;
  throw InvalidArgument(
      concat(method, ": option dense = '", name, "': choose ordered, native or bf16"));
}

MethodOption dense_option() {
  return {
      "dense", "ordered",
      "sum of gradients: 'ordered' adds in rank order, the same bits on every transport; "
      "'native' is the transport's own all-reduce; 'bf16' sends bfloat16 and adds in float32 in "
      "rank order: half the bytes, the same bits on every transport"};
}

void encode_dense(const Bucket& bucket, ConstView grad, const StepContext& ctx, exchange::Dense how,
                  Wire& wire) {
  exchange::prepare_dense(bucket, ctx, how, grad, wire);
  wire.poison.reset();
  for (const Shard& shard : bucket.shards) {
    for (const Piece& piece : shard.pieces) {
      if (ctx.is_absent(piece.tensor) || wire.poison) continue;
      if (!exchange::is_finite(wire, bucket, piece, how)) {
        wire.poison = Poison{ctx.rank, static_cast<std::uint32_t>(piece.tensor)};
      }
    }
  }
}

void DenseMethod::encode(const Bucket& b, ConstView g, const StepContext& ctx, Wire& w) {
  encode_dense(b, g, ctx, dense_, w);
}

// g = mean over ranks
void DenseMethod::exchange(Communicator& c, const Bucket& b, const StepContext& ctx, Wire& w) {
  exchange::dense_mean(c, b, ctx, dense_, w);
}

void DenseMethod::apply(const Bucket& b, const Wire& w, const StepContext& ctx, View x) {
  for (std::size_t j = 0; j < b.shards.size(); ++j) {
    for (std::size_t k = 0; k < b.shards[j].pieces.size(); ++k) {
      const Piece& p = b.shards[j].pieces[k];
      const StepScalars& s = ctx.groups[static_cast<std::size_t>(p.group)];
      if (exchange::nobody_has(w, j, k)) {
        kernels::apply_decay(s.decay, x.f32(p.begin, p.end));
      } else {
        step_piece(p, exchange::mean_of(w, b, p), s, x.f32(p.begin, p.end));
      }
    }
  }
}

Cost DenseMethod::cost(std::span<const Bucket> buckets, int rank, std::int64_t) const {
  return exchange::dense_cost(buckets, rank, dense_);
}

std::span<float> DenseMethod::mean_gradient(const Bucket&, Wire& w) const {
  return floats_of(w.dense_mean);
}

}  // namespace pride::methods
