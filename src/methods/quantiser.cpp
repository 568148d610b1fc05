// SPDX-License-Identifier: Apache-2.0
#include "methods/quantiser.h"

#include <algorithm>

#include "codecs/scaled_signs.h"
#include "methods/dlion.h"
#include "pride/error.h"

namespace pride::methods {
namespace {

using kernels::Size;

Size size_option(const OptionValues& options) {
  constexpr Size kSizes[] = {Size::kLogs, Size::kSum, Size::kSquares, Size::kLargest};
  return kSizes[options.word("scale", {"l0", "l1", "l2", "max"})];
}

std::size_t blocks_of(std::size_t n) { return (n + kScaleBlock - 1) / kScaleBlock; }

std::span<const float> part_of(std::span<const float> x, std::size_t at, std::size_t n) {
  return x.empty() ? x : x.subspan(at, n);
}

}  // namespace

std::string Quantiser::host_only(const OptionValues& options) {
  if (options.text("scale") == "l0") return needs_host(options, "scale = l0");
  if (options.text("rounding") == "stochastic") return needs_host(options, "rounding = stochastic");
  return "";
}

Quantiser::Quantiser(const MethodContext& ctx)
    : layout_(ctx.layout),
      size_(size_option(ctx.options)),
      by_tensor_(ctx.options.word("granularity", {"block", "tensor"}) == 1),
      stochastic_(ctx.options.word("rounding", {"nearest", "stochastic"}) == 1) {
  const bool shared = ctx.options.yes_no("shared");
  PRIDE_CHECK(!shared || by_tensor_, ctx.options.method(),
              ": option shared = yes with granularity = block: scales of blocks are each rank's "
              "own; choose granularity = tensor, or shared = no");
  if (!by_tensor_) {
    const std::size_t blocks = layout_.flat_size() / kScaleBlock + 1 + layout_.tensors().size();
    steps_ = ctx.space.zeros(blocks);
    return;
  }
  std::size_t n = 0;
  for (const TensorSlot& slot : layout_.tensors()) {
    scale_of_.push_back(n);
    n += slot.n > 0 ? 1 : 0;
  }
  scales_.resize(n);
  steps_ = ctx.space.zeros(n);
  if (!shared) return;
  const bool largest = size_ == Size::kLargest;
  shared_.emplace(largest ? SharedScales::Rule::kLargest : SharedScales::Rule::kMean, n);
}

std::optional<Part> Quantiser::preliminary() const {
  if (!shared_) return std::nullopt;
  return shared_->part();
}

// Copies the sums of all tensors at once, then adds them in the order of their blocks.
void Quantiser::encode_preliminary(Space& space, const StepContext& ctx, GradientView g,
                                   std::span<const float> m, std::span<const float> e,
                                   Wire& preliminary) {
  space.begin_frames();
  std::size_t n_sums = 0;
  for (const TensorSlot& slot : layout_.tensors()) n_sums += blocks_of(slot.n);
  std::vector<double> sums(n_sums), logs(size_ == Size::kLogs ? n_sums : 0);
  const auto staged = space.stage(std::span(sums));
  for (std::size_t t = 0, at = 0; t < layout_.tensors().size(); ++t) {
    const TensorSlot& slot = layout_.tensors()[t];
    const std::size_t n = blocks_of(slot.n), first = std::exchange(at, at + n);
    if (n == 0 || ctx.is_unused(t)) continue;
    space.run(
        kernels::Measure{{g.of(t, slot.offset, slot.offset + slot.n),
                          lion_blend(ctx.scalars_of_group(slot.spec.group)),
                          m.subspan(slot.offset, slot.n), part_of(e, slot.offset, slot.n)},
                         size_,
                         staged.subspan(first, n),
                         logs.empty() ? std::span<double>() : std::span(logs).subspan(first, n)});
  }
  space.send(staged, std::span(sums));
  space.wait(space.record());
  for (std::size_t t = 0, k = 0; t < layout_.tensors().size(); ++t) {
    const std::size_t n = layout_.tensors()[t].n;
    kernels::Total total;
    for (const std::size_t end = k + blocks_of(n); k < end; ++k) {
      total.add(size_, {sums[k], logs.empty() ? 0 : logs[k]});
    }
    if (n > 0) scales_[scale_of_[t]] = ctx.is_unused(t) ? 0 : total.magnitude(size_, n);
  }
  if (shared_) shared_->write(scales_, preliminary);
}

void Quantiser::place_steps(Space& space, int bits) {
  // a device has read the last ones: encode_preliminary() has waited for it
  placed_.resize(scales_.size() * sizeof(float), space);
  std::ranges::transform(scales_, placed_.floats().begin(), [&](float c) {
    return kernels::level_step(size_, c, kernels::largest_level(bits));
  });
  space.begin_frames();
  space.run(kernels::Copy{space.upload(std::span<const float>(placed_.floats())),
                          std::span(steps_.get(), scales_.size())});
}

// A block's number is that of its range of flat coordinates, plus the number of tensors before it.
std::span<float> Quantiser::block_steps(const Piece& piece) {
  const std::size_t first = piece.begin / kScaleBlock;
  return {steps_.get() + piece.tensor + first, blocks_of(piece.end) - first};
}

// Blocks are measured and quantised at once on the host, in the L1 cache.
void Quantiser::encode(Space& space, const Piece& piece, const StepContext& ctx, const Buffers& b,
                       const kernels::LevelLines& lines, FaultSlot fault) {
  const kernels::BlendOf u = {b.g.of(piece), lion_blend(ctx.scalars_of(piece)), b.m, b.e};
  const std::size_t lead = piece.begin % kScaleBlock;
  kernels::LevelSteps steps{{}, kScaleBlock, lead};
  if (by_tensor_) steps = {{steps_.get() + scale_of_[piece.tensor], 1}, piece.n(), 0};
  if (!by_tensor_ && !space.is_host()) {
    const auto blocks = block_steps(piece);
    const int largest = kernels::largest_level(lines.shape.bits);
    space.run(kernels::MeasureBlocks{u, size_, largest, {blocks, lead}});
    steps.of = blocks;
  }
  kernels::Quantise call{u, steps, b.m, b.e_next, lines, fault};
  if (!by_tensor_ && space.is_host()) call.size = size_;
  if (stochastic_) call.random = {ctx.seed, ctx.step, ctx.rank, piece.in_whole(piece.begin)};
  space.run(call);
}

}  // namespace pride::methods
