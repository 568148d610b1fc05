// SPDX-License-Identifier: Apache-2.0
#include "methods/encode_signs.h"

#include "codecs/signs.h"
#include "methods/zeros.h"

namespace pride::methods {

DType momentum_option(const OptionValues& options) {
  const char* const option = "momentum_dtype";
  if (!options.has(option)) return DType::kFloat32;  // an outer step lacks the option
  const bool wide = options.word(option, {"float32", "bfloat16"}) == 0;
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

void encode_signs(Space& space, std::span<const Shard> shards, GradientView grad,
                  const StepContext& ctx, BlendOf blend, const Stored& m, Wire& wire,
                  OrthogonalBlend* muon) {
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
      const FaultSlot fault{watched, static_cast<std::uint32_t>(p.tensor)};
      const auto zeros = zero_bits_of(ctx, p, step_scale(muon, p.tensor));
      if (muon != nullptr && muon->has(p.tensor)) {
        muon->encode(p, zeros, signs, fault);
        if (ctx.lean) muon->release(p);
      } else {
        space.run(kernels::LionSigns{grad.of(p), blend(ctx.scalars_of(p)), zeros,
                                     m.of(p.begin, p.n()), signs, fault});
      }
    }
    space.send(staged, frame);
  }
  space.report(watched, wire.fault_word());
}

void copy_tie_bits(Space& space, std::span<const Shard> shards, const StepContext& ctx,
                   const OrthogonalBlend* muon, Wire& wire) {
  if (space.is_host() || ctx.central) return;
  const Shard& mine = shards.size() == 1 ? shards[0] : shards[static_cast<std::size_t>(ctx.rank)];
  wire.cells.resize(sizeof(std::uint64_t) * mine.n_words(), *ctx.memory);
  const auto bytes = wire.cells.span();
  const std::span words(reinterpret_cast<std::uint64_t*>(bytes.data()), mine.n_words());
  const auto staged = space.stage(words);
  for (const Piece& p : mine.pieces) {
    space.run(
        kernels::CellBits{cell_bits_of(ctx, p, step_scale(muon, p.tensor)), words_of(staged, p)});
  }
  space.send(staged, words);
}

}  // namespace pride::methods
