// Lion's update as packed signs, written straight into the frames that will be sent.
// SPDX-License-Identifier: Apache-2.0
#include "methods/lion_signs.h"

#include <algorithm>

#include "codecs/hash_keys.h"
#include "codecs/payload.h"
#include "kernels/kernels.h"

namespace pride::methods {
namespace {

// One piece; returns the index of a bad gradient, or kAllFinite.
std::size_t encode_piece(const Piece& piece, ConstView grad, const StepContext& ctx,
                         FlatBuffer& momentum, std::span<std::uint64_t> signs,
                         std::span<std::uint64_t> presence) {
  const StepScalars& s = ctx.groups[static_cast<std::size_t>(piece.group)];
  const kernels::Blend blend{s.beta1, s.one_minus_beta1, s.beta2, s.one_minus_beta2};
  const kernels::HashWords zeros{zero_key(ctx.seed, ctx.step, ctx.rank), piece.begin / 64};
  const auto g = grad.f32(piece.begin, piece.end);
  const auto m = momentum.span().subspan(piece.begin, piece.n());
  if (piece.sparse) return kernels::lion_sign_update_sparse(g, blend, zeros, m, signs, presence);
  return kernels::lion_sign_update(g, blend, zeros, m, signs);
}

void encode_shard(const Shard& shard, ConstView grad, const StepContext& ctx, FlatBuffer& momentum,
                  std::span<std::byte> frame, std::optional<Poison>& poison) {
  const SignFrame at(shard);
  const auto absent = words_at(frame, at.absent_at, at.absent_words);
  std::fill(absent.begin(), absent.end(), 0);
  std::size_t word = 0;
  std::size_t presence_word = 0;
  for (std::size_t k = 0; k < shard.pieces.size(); ++k) {
    const Piece& piece = shard.pieces[k];
    const std::size_t n_presence = piece.sparse ? kernels::words_for(piece.n_words()) : 0;
    const auto signs = words_at(frame, at.signs_at + 8 * word, piece.n_words());
    const auto presence = words_at(frame, at.presence_at + 8 * presence_word, n_presence);
    if (ctx.is_absent(piece.tensor)) {
      set_bit(absent, k);
      std::fill(signs.begin(), signs.end(), 0);
      std::fill(presence.begin(), presence.end(), 0);
    } else if (encode_piece(piece, grad, ctx, momentum, signs, presence) != kernels::kAllFinite &&
               !poison) {
      poison = Poison{ctx.rank, static_cast<std::uint32_t>(piece.tensor)};
    }
    word += piece.n_words();
    presence_word += n_presence;
  }
}

}  // namespace

void encode_lion_signs(const Bucket& bucket, ConstView grad, const StepContext& ctx,
                       FlatBuffer& momentum, Wire& wire) {
  wire.poison.reset();
  for (std::size_t j = 0; j < bucket.shards.size(); ++j) {
    encode_shard(bucket.shards[j], grad, ctx, momentum, wire.up[j].span(), wire.poison);
  }
}

}  // namespace pride::methods
