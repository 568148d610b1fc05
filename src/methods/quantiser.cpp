// SPDX-License-Identifier: Apache-2.0
#include "methods/quantiser.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "codecs/scaled_signs.h"
#include "kernels/log2.h"
#include "kernels/scaled_signs.h"
#include "kernels/ternary.h"
#include "methods/dlion.h"
#include "pride/error.h"

namespace pride::methods {

std::string Quantiser::host_only(const OptionValues& options) {
  if (options.text("scale") == "l0") return needs_host(options, "scale = l0");
  if (options.text("rounding") == "stochastic") return needs_host(options, "rounding = stochastic");
  return "";
}

Quantiser::Quantiser(const MethodContext& ctx)
    : layout_(ctx.layout),
      scale_(static_cast<Scale>(ctx.options.word("scale", {"l0", "l1", "l2", "max"}))),
      by_tensor_(ctx.options.word("granularity", {"block", "tensor"}) == 1),
      stochastic_(ctx.options.word("rounding", {"nearest", "stochastic"}) == 1) {
  const bool shared = ctx.options.yes_no("shared");
  PRIDE_CHECK(!shared || by_tensor_, ctx.options.method(),
              ": option shared = yes with granularity = block: scales of blocks are each rank's "
              "own; choose granularity = tensor, or shared = no");
  if (!by_tensor_) return;
  std::size_t n = 0;
  for (const TensorSlot& slot : layout_.tensors()) {
    scale_of_.push_back(n);
    n += slot.n > 0 ? 1 : 0;
  }
  scales_.resize(n);
  if (!shared) return;
  const bool largest = scale_ == Scale::kMaximum;
  shared_.emplace(largest ? SharedScales::Rule::kLargest : SharedScales::Rule::kMean, n);
}

std::optional<Part> Quantiser::preliminary() const {
  if (!shared_) return std::nullopt;
  return shared_->part();
}

// A part's contribution to the magnitude of its scope.
Quantiser::Total Quantiser::part_of(std::span<const float> u) const {
  switch (scale_) {
    case Scale::kGeometricMean:
      return {.size = kernels::sum_abs(u), .log2 = kernels::sum_log2(u)};
    case Scale::kMeanAbs:
      return {.size = kernels::sum_abs(u)};
    case Scale::kRootMeanSquare:
      return {.size = kernels::sum_squares(u)};
    case Scale::kMaximum:
      break;
  }
  return {.size = double{kernels::max_abs(u)}};
}

void Quantiser::add(double size, Total& total) const {
  const bool largest = scale_ == Scale::kMaximum;
  total.size = largest ? std::max(total.size, size) : total.size + size;
}

// c of a scope of n coordinates. 0 if n is 0 or values are not finite, which encode() detects.
float Quantiser::reference(const Total& total, std::size_t n) const {
  if (n == 0) return 0;
  const auto count = static_cast<double>(n);
  double size = total.size;
  if (scale_ == Scale::kMeanAbs) size /= count;
  if (scale_ == Scale::kRootMeanSquare) size = std::sqrt(size / count);
  if (scale_ == Scale::kGeometricMean && size > 0 && std::isfinite(size)) {
    size = kernels::exp2_of(total.log2 / count);
  }
  const auto c = static_cast<float>(size);
  return std::isfinite(c) ? c : 0;
}

// The blend of flat coordinates [begin, end) of a tensor.
void Quantiser::blend(const Flat& flat, const kernels::Blend& rule, std::size_t tensor,
                      std::size_t begin, std::span<float> u) const {
  flat.g.for_blocks(tensor, begin, begin + u.size(), [&](std::size_t at, std::span<const float> g) {
    kernels::blend_only(g, rule, flat.m.subspan(at, g.size()), u.subspan(at - begin, g.size()));
  });
  if (!flat.e.empty()) kernels::add(flat.e.subspan(begin, u.size()), u);
}

// Block by block, so that only the gradient and the state are read from memory.
float Quantiser::measure(const Flat& flat, const StepContext& ctx, std::size_t tensor) const {
  const TensorSlot& slot = layout_.tensors()[tensor];
  const kernels::Blend rule = lion_blend(ctx.scalars_of_group(slot.spec.group));
  alignas(64) std::array<float, kScaleBlock> block;
  Total total;
  for (std::size_t at = 0; at < slot.n; at += kScaleBlock) {
    const auto u = std::span(block).first(std::min(kScaleBlock, slot.n - at));
    blend(flat, rule, tensor, slot.offset + at, u);
    const Total part = part_of(u);
    add(part.size, total);
    total.log2 += part.log2;
  }
  return reference(total, slot.n);
}

// 0 where the magnitudes count as zero: then all levels are 0.
float Quantiser::step_of(float c, int largest) const {
  if (c < kernels::kZeroFloor) return 0;
  const bool half = scale_ != Scale::kMaximum;
  const float top = half ? std::min(2.0f * c, std::numeric_limits<float>::max()) : c;
  return top / static_cast<float>(largest);
}

void Quantiser::prepare(Space& space, const StepContext& ctx, GradientView g,
                        std::span<const float> m, std::span<const float> e, Wire& preliminary) {
  const Flat flat{g, m, e};
  space.is_host() ? measure_on_host(ctx, flat) : measure_on_device(space, ctx, flat);
  if (shared_) shared_->write(scales_, preliminary);
}

void Quantiser::measure_on_host(const StepContext& ctx, const Flat& flat) {
  for (std::size_t t = 0; t < layout_.tensors().size(); ++t) {
    if (layout_.tensors()[t].n == 0) continue;
    scales_[scale_of_[t]] = ctx.is_unused(t) ? 0 : measure(flat, ctx, t);
  }
}

// Coordinates [begin, begin + q.size()) of the piece with a known scale and no error feedback: the
// blend is never stored. Returns the first that is not finite, or kAllFinite.
std::size_t Quantiser::encode_at_once(const Piece& piece, const kernels::Blend& rule,
                                      const Buffers& b, std::size_t begin, int largest,
                                      std::span<std::int8_t> q) const {
  const std::size_t first = piece.begin + begin;
  alignas(64) std::array<float, kScaleBlock> block;
  const auto g = b.g.read(piece.tensor, first, first + q.size(), block);
  const float step = step_of(scales_[scale_of_[piece.tensor]], largest);
  const std::size_t found = kernels::lion_quantise(g, rule, step == 0 ? 0.0f : 1.0f / step, largest,
                                                   b.m.subspan(begin, q.size()), q);
  return found == kernels::kAllFinite ? found : begin + found;
}

// The same in separate steps: the blend, its scale and its levels, which stay in the L1 cache.
std::size_t Quantiser::encode_in_steps(const Piece& piece, const StepContext& ctx, const Buffers& b,
                                       std::size_t begin, int largest,
                                       std::span<std::int8_t> q) const {
  alignas(64) std::array<float, kScaleBlock> blend, random;
  const std::size_t n = q.size(), first = piece.begin + begin;
  const auto u = std::span(blend).first(n);
  const auto g = b.g.read(piece.tensor, first, first + n, random);  // random is written afterwards
  std::size_t found =
      kernels::lion_blend(g, lion_blend(ctx.scalars_of(piece)), b.m.subspan(begin, n), u);
  if (!b.e.empty()) {
    kernels::add(b.e.subspan(begin, n), u);
    const std::size_t overflow = kernels::first_non_finite(u);
    if (found == kernels::kAllFinite) found = overflow;
    if (overflow != kernels::kAllFinite) std::ranges::fill(u, 0.0f);  // the step is dropped anyway
  }
  const float step =
      step_of(by_tensor_ ? scales_[scale_of_[piece.tensor]] : reference(part_of(u), n), largest);
  const float inv = step == 0 ? 0.0f : 1.0f / step;
  if (stochastic_) {
    const auto r = std::span(random).first(n);
    kernels::uniforms({ctx.seed, ctx.step, ctx.rank, piece.in_whole(first)}, r);
    kernels::quantise(u, inv, largest, r, q);
  } else {
    kernels::quantise(u, inv, largest, q);
  }
  if (!b.e_next.empty()) kernels::keep_level_error(u, q, step, b.e_next.subspan(begin, n));
  return found == kernels::kAllFinite ? found : begin + found;
}

std::size_t Quantiser::encode(const Piece& piece, const StepContext& ctx, const Buffers& b,
                              int bits, const TakeLevels& take) const {
  alignas(64) std::array<std::int8_t, kScaleBlock> levels;
  const int largest = kernels::largest_level(bits);
  const bool at_once = by_tensor_ && !stochastic_ && b.e.empty();
  std::size_t bad = kernels::kAllFinite;
  for (std::size_t i = 0; i < piece.n();) {
    // blocks are aligned in the flat coordinates
    const std::size_t n = std::min(piece.n() - i, kScaleBlock - (piece.begin + i) % kScaleBlock);
    const auto q = std::span(levels).first(n);
    const std::size_t found =
        at_once ? encode_at_once(piece, lion_blend(ctx.scalars_of(piece)), b, i, largest, q)
                : encode_in_steps(piece, ctx, b, i, largest, q);
    if (bad == kernels::kAllFinite) bad = found;
    take(i, q);
    i += n;
  }
  return bad;
}

}  // namespace pride::methods
