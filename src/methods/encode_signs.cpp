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

constexpr std::size_t kBlock = GradientView::kBlock;

float scale_of(float most) { return most < kernels::kZeroFloor ? 1 : most; }

// S_R(u) = +1 with probability (R + u)/(2R). Returns false if g or m is not finite somewhere.
bool stochastic_update(const Piece& p, GradientView grad, const StepContext& ctx,
                       const kernels::Blend& blend, float scale, std::span<float> m,
                       std::span<std::uint64_t> signs) {
  alignas(64) float u[kBlock], block[kBlock];
  bool finite = true;
  for (std::size_t at = p.begin; at < p.end; at += kBlock) {
    const std::size_t end = std::min(at + kBlock, p.end);
    const std::span part(u, end - at);
    finite &= kernels::lion_blend(grad.read(p.tensor, at, end, std::span(block)), blend,
                                  m.subspan(at, end - at), part) == kernels::kAllFinite;
    kernels::stochastic_signs(part, scale, {ctx.seed, ctx.step, ctx.rank, at},
                              zero_words(ctx.seed, ctx.step, ctx.rank, at / 64),
                              signs.subspan((at - p.begin) / 64, words_for(end - at)));
  }
  return finite;
}

// Signs of a piece that are not those of its blend alone; false if a value is not finite.
bool encode_by_rule(const Piece& p, GradientView grad, const StepContext& ctx,
                    const kernels::Blend& blend, const SignRule& rule, std::span<float> m,
                    std::span<std::uint64_t> signs) {
  const bool exact = rule.scales.empty();
  if (rule.matrices == nullptr || !rule.matrices->has(p.tensor)) {
    return stochastic_update(p, grad, ctx, blend, rule.scales[p.tensor], m, signs);
  }
  if (rule.matrices->encode(p, ctx, signs)) return false;
  if (!exact) {
    kernels::stochastic_signs(rule.matrices->direction(p), rule.scales[p.tensor],
                              {ctx.seed, ctx.step, ctx.rank, p.begin},
                              zero_words(ctx.seed, ctx.step, ctx.rank, p.begin / 64), signs);
  }
  return true;
}

}  // namespace

float sign_scale(std::span<const float> u) { return scale_of(kernels::max_abs(u)); }

float sign_scale(std::size_t tensor, const TensorSlot& slot, GradientView grad,
                 const kernels::Blend& blend, std::span<const float> m) {
  alignas(64) float u[kBlock], block[kBlock];
  float most = 0;
  for (std::size_t i = 0; i < slot.n; i += kBlock) {
    const std::size_t at = slot.offset + i, n = std::min(kBlock, slot.n - i);
    kernels::blend_only(grad.read(tensor, at, at + n, std::span(block)), blend, m.subspan(at, n),
                        std::span(u, n));
    most = std::max(most, kernels::max_abs(std::span(u, n)));
  }
  return scale_of(most);
}

void encode_signs(Space& space, std::span<const Shard> shards, GradientView grad,
                  const StepContext& ctx, BlendOf blend, FlatBuffer& m, Wire& wire,
                  const SignRule& rule) {
  space.begin_frames();
  std::uint32_t* const watched = space.watch(wire.fault_word());
  for (std::size_t j = 0; j < shards.size(); ++j) {
    const auto frame = SignView(wire.up[j].span().data(), shards[j]).signs;
    const auto staged = space.stage(frame);
    for (const Piece& p : shards[j].pieces) {
      const auto signs = words_of(staged, p);
      const FaultSlot fault{watched, static_cast<std::uint32_t>(p.tensor)};
      const bool plain = rule.scales.empty() && (!rule.matrices || !rule.matrices->has(p.tensor));
      if (ctx.is_unused(p.tensor)) {
        space.clear(signs);
      } else if (plain) {
        space.lion_sign_update(grad.of(p), blend(ctx.scalars_of(p)),
                               zero_words(ctx.seed, ctx.step, ctx.rank, p.begin / 64),
                               m.span().subspan(p.begin, p.n()), signs, fault);
      } else if (!encode_by_rule(p, grad, ctx, blend(ctx.scalars_of(p)), rule, m.span(), signs)) {
        fault.note();
      }
    }
    space.send(staged, frame);
  }
  space.report(watched, wire.fault_word());
}

}  // namespace pride::methods
