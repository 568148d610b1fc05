// SPDX-License-Identifier: Apache-2.0
#include "methods/encode_signs.h"

#include <algorithm>

#include "codecs/signs.h"
#include "kernels/levels.h"
#include "kernels/stochastic_signs.h"
#include "kernels/ternary.h"
#include "methods/options.h"
#include "methods/zeros.h"

namespace pride::methods {

DType momentum_option(const std::string& method, const MethodContext& ctx) {
  const char* const option = "momentum_dtype";
  if (!ctx.options.contains(option)) return DType::kFloat32;  // an outer step lacks the option
  const bool wide = word_option(method, ctx, option, {"float32", "bfloat16"}) == 0;
  return wide ? DType::kFloat32 : DType::kBFloat16;
}

MethodOption momentum_option_info() {
  return {"momentum_dtype", "float32",
          "type of the momentum in memory: 'float32'; or 'bfloat16', rounded to nearest in each "
          "step: 2 bytes per parameter instead of 4"};
}

kernels::Blend lion_blend(const StepScalars& s) {
  return {s.beta1, s.one_minus_beta1, s.beta2, s.one_minus_beta2};
}

namespace {

constexpr std::size_t kBlock = GradientView::kBlock;

float scale_of(float most) { return most < kernels::kZeroFloor ? 1 : most; }

// S_R(u) = +1 with probability (R + u)/(2R). Returns false if g or m is not finite somewhere.
bool stochastic_update(const Piece& p, GradientView grad, const StepContext& ctx,
                       const kernels::Blend& blend, float scale, Floats m,
                       const kernels::SharedBits& zeros, std::span<std::uint64_t> signs) {
  alignas(64) float u[kBlock], block[kBlock];
  bool finite = true;
  for (std::size_t at = p.begin; at < p.end; at += kBlock) {
    const std::size_t end = std::min(at + kBlock, p.end);
    const std::span part(u, end - at);
    const auto g = grad.read(p.tensor, at, end, std::span(block));
    m.subspan(at - p.begin, end - at).for_blocks([&](std::size_t, std::span<float> momentum) {
      finite &= kernels::lion_blend(g, blend, momentum, part) == kernels::kAllFinite;
    });
    const std::uint64_t first = p.in_whole(at);
    kernels::stochastic_signs(part, scale, {ctx.seed, ctx.step, ctx.rank, first},
                              zeros.from(at - p.begin),
                              signs.subspan((at - p.begin) / 64, words_for(end - at)));
  }
  return finite;
}

}  // namespace

float sign_scale(std::span<const float> u) { return scale_of(kernels::max_abs(u)); }

float sign_scale(std::size_t tensor, const TensorSlot& slot, GradientView grad,
                 const kernels::Blend& blend, const Stored& m) {
  alignas(64) float u[kBlock], block[kBlock], room[kBlock];
  float most = 0;
  for (std::size_t i = 0; i < slot.n; i += kBlock) {
    const std::size_t at = slot.offset + i, n = std::min(kBlock, slot.n - i);
    kernels::blend_only(grad.read(tensor, at, at + n, std::span(block)), blend,
                        m.of(at, n).read(std::span(room)), std::span(u, n));
    most = std::max(most, kernels::max_abs(std::span(u, n)));
  }
  return scale_of(most);
}

namespace {

// Signs of a piece.
void encode_piece(Space& space, const Piece& p, GradientView grad, const StepContext& ctx,
                  const kernels::Blend& blend, const SignRule& rule, Floats m,
                  std::span<std::uint64_t> signs, FaultSlot fault) {
  const bool exact = rule.scales.empty();
  const auto zeros = zeros_of(ctx, p, rule.step_scale(p.tensor));
  if (rule.matrices != nullptr && rule.matrices->has(p.tensor)) {
    rule.matrices->encode(p, zeros, signs, fault);
    if (exact || *fault.word <= fault.tensor) return;
    kernels::stochastic_signs(rule.matrices->direction(p), rule.scales[p.tensor],
                              {ctx.seed, ctx.step, ctx.rank, p.in_whole(p.begin)}, zeros, signs);
  } else if (exact) {
    space.lion_sign_update(grad.of(p), blend, zeros, m, signs, fault);
  } else if (!stochastic_update(p, grad, ctx, blend, rule.scales[p.tensor], m, zeros, signs)) {
    fault.note();
  }
}

}  // namespace

void encode_signs(Space& space, std::span<const Shard> shards, GradientView grad,
                  const StepContext& ctx, BlendOf blend, const Stored& m, Wire& wire,
                  const SignRule& rule) {
  space.begin_frames();
  space.stage_block(wire.up_block.span());
  std::uint32_t* const watched = space.watch(wire.fault_word());
  for (std::size_t j = 0; j < shards.size(); ++j) {
    const auto frame = SignView(wire.up[j].span().data(), shards[j]).signs;
    const auto staged = space.stage(frame);
    for (const Piece& p : shards[j].pieces) {
      const auto signs = words_of(staged, p);
      if (ctx.is_unused(p.tensor)) {
        space.clear(signs);
        continue;
      }
      encode_piece(space, p, grad, ctx, blend(ctx.scalars_of(p)), rule, m.of(p.begin, p.n()), signs,
                   {watched, static_cast<std::uint32_t>(p.tensor)});
    }
    space.send(staged, frame);
  }
  space.report(watched, wire.fault_word());
}

void send_cells(Space& space, std::span<const Shard> shards, const StepContext& ctx,
                const OrthogonalBlend* matrices, Wire& wire) {
  if (space.is_host() || ctx.central) return;
  const Shard& mine = shards.size() == 1 ? shards[0] : shards[static_cast<std::size_t>(ctx.rank)];
  wire.cells.resize(sizeof(std::uint64_t) * mine.n_words(), *ctx.memory);
  const auto bytes = wire.cells.span();
  const std::span words(reinterpret_cast<std::uint64_t*>(bytes.data()), mine.n_words());
  const auto staged = space.stage(words);
  for (const Piece& p : mine.pieces) {
    space.cell_bits(cells_of(ctx, p, matrices == nullptr ? 1 : matrices->step_scale(p.tensor)),
                    words_of(staged, p));
  }
  space.send(staged, words);
}

}  // namespace pride::methods
