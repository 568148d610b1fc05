// Levels on a device: kernels measure and quantise, the host adds the sums of a tensor or row.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "codecs/scaled_signs.h"
#include "methods/dlion.h"
#include "methods/options.h"
#include "methods/quantiser.h"
#include "pride/error.h"

namespace pride::methods {
namespace {

using Size = LevelKernels::Size;

Size size_of(Scale scale) {
  if (scale == Scale::kMaximum) return Size::kLargest;
  return scale == Scale::kRootMeanSquare ? Size::kSquares : Size::kSum;
}

std::size_t parts_of(std::size_t n) { return (n + kScaleBlock - 1) / kScaleBlock; }

}  // namespace

void Quantiser::check_device(const std::string& method, Space& space) const {
  check_on_host(method, space, options_.scale != Scale::kGeometricMean, "scale = l0");
  check_on_host(method, space, options_.scale != Scale::kQuantile, "scale = quantile");
  check_on_host(method, space, !options_.stochastic, "rounding = stochastic");
}

// Copies the sums of all tensors at once, then adds them as measure() does.
void Quantiser::measure_on_device(Space& space, const StepContext& ctx, const Flat& flat) {
  space.begin_frames();
  std::size_t n_sums = 0;
  for (std::size_t t = 0; t < layout_.tensors().size(); ++t) n_sums += sums_of(t);
  std::vector<double> sums(n_sums);
  const auto staged = space.stage(std::span(sums));
  for (std::size_t t = 0, at = 0; t < layout_.tensors().size(); at += sums_of(t++)) {
    if (ctx.is_unused(t)) continue;
    const TensorSlot& slot = layout_.tensors()[t];
    space.levels()->measure_rows(
        {flat.g.of(t, slot.offset, slot.offset + slot.n),
         lion_blend(ctx.scalars_of_group(slot.spec.group)), flat.m.subspan(slot.offset, slot.n),
         flat.e.empty() ? flat.e : flat.e.subspan(slot.offset, slot.n)},
        size_of(options_.scale), row_[t], staged.subspan(at, sums_of(t)));
  }
  space.send(staged, std::span(sums));
  space.wait(space.record());
  for (std::size_t t = 0, at = 0, k = 0; t < layout_.tensors().size(); ++t) {
    const std::size_t parts = parts_of(row_[t]), rows = sums_of(t) / parts;
    for (std::size_t row = 0; row < rows; ++row, ++k, at += parts) {
      Total total;
      for (const double part : std::span(sums).subspan(at, parts)) add(part, total);
      scales_[k] = ctx.is_unused(t) ? 0 : reference(total, row_[t]);
    }
  }
}

// The number of a tensor's sums: one for each kScaleBlock of each scope.
std::size_t Quantiser::sums_of(std::size_t tensor) const {
  return layout_.tensors()[tensor].n / row_[tensor] * parts_of(row_[tensor]);
}

void Quantiser::place_steps(Space& space, int bits) {
  const std::size_t n = scales_.size();
  if (!steps_) steps_ = space.zeros(n);
  // the device has read the last ones: measure_on_device() has waited for it
  placed_.resize(n * sizeof(float), space);
  std::ranges::transform(scales_, placed_.floats().begin(),
                         [&](float c) { return step_of(c, kernels::largest_level(bits)); });
  space.begin_frames();
  space.copy(space.bring(std::span<const float>(placed_.floats())), std::span(steps_.get(), n));
}

// A block's number is that of its range of flat coordinates, plus the number of tensors before it.
std::span<float> Quantiser::block_steps(Space& space, const Piece& piece) {
  const std::size_t tensors = layout_.tensors().size();
  if (!steps_) steps_ = space.zeros(layout_.flat_size() / kScaleBlock + 1 + tensors);
  const std::size_t first = piece.begin / kScaleBlock;
  return {steps_.get() + piece.tensor + first, parts_of(piece.end) - first};
}

void Quantiser::encode_on_device(Space& space, const Piece& piece, const StepContext& ctx,
                                 const Buffers& b, int bits, const LevelKernels::Lines& lines,
                                 FaultSlot fault) {
  const LevelKernels::BlendOf u = {b.g.of(piece), lion_blend(ctx.scalars_of(piece)), b.m, b.e};
  LevelKernels::Steps steps;
  if (options_.granularity == Granularity::kBlock) {
    const auto blocks = block_steps(space, piece);
    const std::size_t lead = piece.begin % kScaleBlock;
    space.levels()->measure_blocks(u, size_of(options_.scale), kernels::largest_level(bits),
                                   {blocks, lead});
    steps = {blocks, kScaleBlock, lead};
  } else {
    const std::size_t in_tensor = piece.begin - layout_.tensors()[piece.tensor].offset;
    steps = {std::span(steps_.get(), scales_.size()).subspan(first_scale_[piece.tensor]),
             row_[piece.tensor], in_tensor};
  }
  space.levels()->quantise(u, steps, b.m, b.e_next, lines, fault);
}

}  // namespace pride::methods
