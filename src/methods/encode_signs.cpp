// SPDX-License-Identifier: Apache-2.0
#include "methods/encode_signs.h"

#include <algorithm>

#include "codecs/hash_keys.h"
#include "codecs/signs.h"
#include "kernels/levels.h"
#include "kernels/stochastic_signs.h"
#include "kernels/ternary.h"

namespace pride::methods {

kernels::Blend lion_blend(const StepScalars& s) {
  return {s.beta1, s.one_minus_beta1, s.beta2, s.one_minus_beta2};
}

namespace {

constexpr std::size_t kBlock = 4096;  // coordinates whose blend stays in the L1 cache

float scale_of(float most) { return most < kernels::kZeroFloor ? 1 : most; }

// S_R(u) = +1 with probability (R + u)/(2R). Returns false if g or m is not finite somewhere.
bool stochastic_update(const Piece& p, ConstView grad, const StepContext& ctx,
                       const kernels::Blend& blend, float scale, std::span<float> m,
                       std::span<std::uint64_t> signs) {
  alignas(64) float u[kBlock];
  bool finite = true;
  for (std::size_t at = p.begin; at < p.end; at += kBlock) {
    const std::size_t end = std::min(at + kBlock, p.end);
    const std::span part(u, end - at);
    finite &= kernels::lion_blend(grad.f32(at, end), blend, m.subspan(at, end - at), part) ==
              kernels::kAllFinite;
    kernels::stochastic_signs(part, scale, {ctx.seed, ctx.step, ctx.rank, at},
                              signs.subspan((at - p.begin) / 64, words_for(end - at)));
  }
  return finite;
}

// Signs of a piece; false if a value is not finite.
bool encode_piece(const Piece& p, ConstView grad, const StepContext& ctx,
                  const kernels::Blend& blend, const SignRule& rule, std::span<float> m,
                  std::span<std::uint64_t> signs) {
  const bool exact = rule.scales.empty();
  if (rule.matrices != nullptr && rule.matrices->has(p.tensor)) {
    if (rule.matrices->encode(p, ctx, signs)) return false;
    if (!exact) {
      kernels::stochastic_signs(rule.matrices->direction(p), rule.scales[p.tensor],
                                {ctx.seed, ctx.step, ctx.rank, p.begin}, signs);
    }
    return true;
  }
  if (!exact) return stochastic_update(p, grad, ctx, blend, rule.scales[p.tensor], m, signs);
  const kernels::HashWords zeros{zero_key(ctx.seed, ctx.step, ctx.rank), p.begin / 64};
  return kernels::lion_sign_update(grad.f32(p.begin, p.end), blend, zeros,
                                   m.subspan(p.begin, p.n()), signs) == kernels::kAllFinite;
}

}  // namespace

float sign_scale(std::span<const float> u) { return scale_of(kernels::max_abs(u)); }

float sign_scale(const TensorSlot& slot, ConstView grad, const kernels::Blend& blend,
                 std::span<const float> m) {
  alignas(64) float u[kBlock];
  float most = 0;
  for (std::size_t i = 0; i < slot.n; i += kBlock) {
    const std::size_t at = slot.offset + i, n = std::min(kBlock, slot.n - i);
    kernels::blend_only(grad.f32(at, at + n), blend, m.subspan(at, n), std::span(u, n));
    most = std::max(most, kernels::max_abs(std::span(u, n)));
  }
  return scale_of(most);
}

std::optional<NonFinite> encode_signs(const Shard& shard, ConstView grad, const StepContext& ctx,
                                      BlendOf blend, FlatBuffer& m, std::span<std::byte> frame,
                                      const SignRule& rule) {
  std::optional<NonFinite> non_finite;
  const SignView view(frame.data(), shard);
  for (const Piece& p : shard.pieces) {
    const auto signs = words_of(view.signs, p);
    if (ctx.is_unused(p.tensor)) {
      std::ranges::fill(signs, std::uint64_t{0});
    } else if (!encode_piece(p, grad, ctx, blend(ctx.scalars_of(p)), rule, m.span(), signs) &&
               !non_finite) {
      non_finite = NonFinite{ctx.rank, static_cast<std::uint32_t>(p.tensor)};
    }
  }
  return non_finite;
}

}  // namespace pride::methods
