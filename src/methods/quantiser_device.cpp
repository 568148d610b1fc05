// Levels on a device: kernels measure and quantise, the host adds the sums of a tensor.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "codecs/scaled_signs.h"
#include "methods/dlion.h"
#include "methods/quantiser.h"

namespace pride::methods {
namespace {

using kernels::Size;

Size size_of(Scale scale) {
  if (scale == Scale::kMaximum) return Size::kLargest;
  return scale == Scale::kRootMeanSquare ? Size::kSquares : Size::kSum;
}

std::size_t blocks_of(std::size_t n) { return (n + kScaleBlock - 1) / kScaleBlock; }

}  // namespace

// Copies the sums of all tensors at once, then adds them as measure() does.
void Quantiser::measure_on_device(Space& space, const StepContext& ctx, const Flat& flat) {
  space.begin_frames();
  std::size_t n_sums = 0;
  for (const TensorSlot& slot : layout_.tensors()) n_sums += blocks_of(slot.n);
  std::vector<double> sums(n_sums);
  const auto staged = space.stage(std::span(sums));
  for (std::size_t t = 0, at = 0; t < layout_.tensors().size(); ++t) {
    const TensorSlot& slot = layout_.tensors()[t];
    const auto of_tensor = staged.subspan(at, blocks_of(slot.n));
    at += of_tensor.size();
    if (of_tensor.empty() || ctx.is_unused(t)) continue;
    space.run(kernels::Measure{
        {flat.g.of(t, slot.offset, slot.offset + slot.n),
         lion_blend(ctx.scalars_of_group(slot.spec.group)), flat.m.subspan(slot.offset, slot.n),
         flat.e.empty() ? flat.e : flat.e.subspan(slot.offset, slot.n)},
        size_of(scale_),
        of_tensor});
  }
  space.send(staged, std::span(sums));
  space.wait(space.record());
  for (std::size_t t = 0, at = 0; t < layout_.tensors().size(); ++t) {
    const std::size_t n = layout_.tensors()[t].n;
    if (n == 0) continue;
    Total total;
    for (const double part : std::span(sums).subspan(at, blocks_of(n))) add(part, total);
    at += blocks_of(n);
    scales_[scale_of_[t]] = ctx.is_unused(t) ? 0 : reference(total, n);
  }
}

void Quantiser::place_steps(Space& space, int bits) {
  const std::size_t n = scales_.size();
  if (!steps_) steps_ = space.zeros(n);
  // the device has read the last ones: measure_on_device() has waited for it
  placed_.resize(n * sizeof(float), space);
  std::ranges::transform(scales_, placed_.floats().begin(),
                         [&](float c) { return step_of(c, kernels::largest_level(bits)); });
  space.begin_frames();
  space.run(kernels::Copy{space.bring(std::span<const float>(placed_.floats())),
                          std::span(steps_.get(), n)});
}

// A block's number is that of its range of flat coordinates, plus the number of tensors before it.
std::span<float> Quantiser::block_steps(Space& space, const Piece& piece) {
  const std::size_t tensors = layout_.tensors().size();
  if (!steps_) steps_ = space.zeros(layout_.flat_size() / kScaleBlock + 1 + tensors);
  const std::size_t first = piece.begin / kScaleBlock;
  return {steps_.get() + piece.tensor + first, blocks_of(piece.end) - first};
}

void Quantiser::encode_on_device(Space& space, const Piece& piece, const StepContext& ctx,
                                 const Buffers& b, int bits, const kernels::LevelLines& lines,
                                 FaultSlot fault) {
  const kernels::BlendOf u = {b.g.of(piece), lion_blend(ctx.scalars_of(piece)), b.m, b.e};
  kernels::LevelSteps steps;
  if (by_tensor_) {
    steps = {{steps_.get() + scale_of_[piece.tensor], 1}, piece.n(), 0};
  } else {
    const auto blocks = block_steps(space, piece);
    const std::size_t lead = piece.begin % kScaleBlock;
    space.run(
        kernels::MeasureBlocks{u, size_of(scale_), kernels::largest_level(bits), {blocks, lead}});
    steps = {blocks, kScaleBlock, lead};
  }
  space.run(kernels::Quantise{u, steps, b.m, b.e_next, lines, fault});
}

}  // namespace pride::methods
