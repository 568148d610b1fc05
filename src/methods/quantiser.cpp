// SPDX-License-Identifier: Apache-2.0
#include "methods/quantiser.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "codecs/scaled_signs.h"
#include "kernels/log2.h"
#include "kernels/scaled_signs.h"
#include "kernels/sparse.h"
#include "kernels/ternary.h"
#include "methods/dlion.h"
#include "methods/options.h"
#include "pride/error.h"

namespace pride::methods {
namespace {

QuantiserOptions read_options(const std::string& method, const MethodContext& ctx) {
  QuantiserOptions o;
  o.scale =
      static_cast<Scale>(word_option(method, ctx, "scale", {"l0", "l1", "l2", "max", "quantile"}));
  o.granularity =
      static_cast<Granularity>(word_option(method, ctx, "granularity", {"block", "tensor", "row"}));
  o.quantile = number_option(method, ctx, "quantile", 0.5, 1);
  o.stochastic = word_option(method, ctx, "rounding", {"nearest", "stochastic"}) == 1;
  o.shared = yes_no_option(method, ctx, "shared");
  return o;
}

// The quantile of the magnitudes; if that is 0, the largest, so that a tensor of mostly zeros still
// gets a scale.
float quantile_of(std::span<const float> u, double share) {
  const auto n = static_cast<double>(u.size());
  const auto above = static_cast<std::size_t>(std::floor((1 - share) * n)) + 1;
  const std::uint32_t magnitude = above < u.size() ? kernels::top_k(u, above).magnitude : 0;
  return magnitude != 0 ? std::bit_cast<float>(magnitude) : kernels::max_abs(u);
}

// Number of coordinates of one scope of a tensor.
std::size_t scope_of(const TensorSlot& slot, Granularity granularity) {
  if (granularity != Granularity::kRow || slot.spec.shape.size() < 2) return slot.n;
  return slot.n / static_cast<std::size_t>(std::max<std::int64_t>(1, slot.spec.shape.front()));
}

}  // namespace

Quantiser::Quantiser(const std::string& method, const MethodContext& ctx)
    : layout_(ctx.layout), options_(read_options(method, ctx)) {
  PRIDE_CHECK(
      !options_.shared || options_.granularity != Granularity::kBlock, method,
      ": option shared = yes with granularity = block: scales of blocks are each rank's own; "
      "choose granularity = tensor or row, or shared = no");
  if (options_.granularity == Granularity::kBlock) return;
  std::size_t n = 0;
  for (const TensorSlot& slot : layout_.tensors()) {
    const std::size_t scope = scope_of(slot, options_.granularity);
    first_scale_.push_back(n);
    row_.push_back(std::max<std::size_t>(1, scope));
    n += scope == 0 ? 0 : slot.n / scope;
  }
  scales_.resize(n);
  if (!options_.shared) return;
  const bool largest = options_.scale == Scale::kMaximum;
  shared_.emplace(largest ? SharedScales::Rule::kLargest : SharedScales::Rule::kMean, n);
}

std::optional<Part> Quantiser::before() const {
  if (!shared_) return std::nullopt;
  return shared_->part();
}

bool Quantiser::needs_whole_gradient() const noexcept {
  return options_.granularity != Granularity::kBlock;
}

// A part's contribution to the magnitude of its scope.
Quantiser::Total Quantiser::part_of(std::span<const float> u) const {
  switch (options_.scale) {
    case Scale::kGeometricMean:
      return {.size = kernels::sum_abs(u), .log2 = kernels::sum_log2(u)};
    case Scale::kMeanAbs:
      return {.size = kernels::sum_abs(u)};
    case Scale::kRootMeanSquare:
      return {.size = kernels::sum_squares(u)};
    default:
      return {.size = double{kernels::max_abs(u)}};
  }
}

void Quantiser::add(double size, Total& total) const {
  const bool largest = options_.scale == Scale::kMaximum;
  total.size = largest ? std::max(total.size, size) : total.size + size;
}

// c of a scope of n coordinates. 0 if n is 0 or values are not finite, which encode() detects.
float Quantiser::reference(const Total& total, std::size_t n) const {
  if (n == 0) return 0;
  const auto count = static_cast<double>(n);
  double size = total.size;
  if (options_.scale == Scale::kMeanAbs) size /= count;
  if (options_.scale == Scale::kRootMeanSquare) size = std::sqrt(size / count);
  if (options_.scale == Scale::kGeometricMean && size > 0 && std::isfinite(size)) {
    size = kernels::exp2_of(total.log2 / count);
  }
  const auto c = static_cast<float>(size);
  return std::isfinite(c) ? c : 0;
}

float Quantiser::reference(std::span<const float> u) const {
  if (u.empty()) return 0;
  if (options_.scale == Scale::kQuantile) return quantile_of(u, options_.quantile);
  return reference(part_of(u), u.size());
}

// The blend of flat coordinates [begin, end) of a tensor.
void Quantiser::blend(const Flat& flat, const kernels::Blend& rule, std::size_t tensor,
                      std::size_t begin, std::span<float> u) const {
  flat.g.for_blocks(tensor, begin, begin + u.size(), [&](std::size_t at, std::span<const float> g) {
    kernels::blend_only(g, rule, flat.m.subspan(at, g.size()), u.subspan(at - begin, g.size()));
  });
  if (!flat.e.empty()) kernels::add(flat.e.subspan(begin, u.size()), u);
}

// Block by block, so that only the gradient and the state are read from memory; only a quantile
// needs the blend in one piece.
float Quantiser::measure(const Flat& flat, const kernels::Blend& rule, std::size_t tensor,
                         std::size_t begin, std::size_t end) {
  if (options_.scale == Scale::kQuantile) {
    whole_.resize(end - begin);
    blend(flat, rule, tensor, begin, whole_);
    const float c = quantile_of(whole_, options_.quantile);
    return std::isfinite(c) ? c : 0;
  }
  alignas(64) std::array<float, kScaleBlock> block;
  Total total;
  for (std::size_t at = begin; at < end; at += kScaleBlock) {
    const auto u = std::span(block).first(std::min(kScaleBlock, end - at));
    blend(flat, rule, tensor, at, u);
    const Total part = part_of(u);
    add(part.size, total);
    total.log2 += part.log2;
  }
  return reference(total, end - begin);
}

// 0 where the magnitudes count as zero: then all levels are 0.
float Quantiser::step_of(float c, int largest) const {
  if (c < kernels::kZeroFloor) return 0;
  const bool half = options_.scale != Scale::kMaximum && options_.scale != Scale::kQuantile;
  const float top = half ? std::min(2.0f * c, std::numeric_limits<float>::max()) : c;
  return top / static_cast<float>(largest);
}

void Quantiser::prepare(Space& space, const StepContext& ctx, GradientView g,
                        std::span<const float> m, std::span<const float> e, Wire& before) {
  const Flat flat{g, m, e};
  space.is_host() ? measure_on_host(ctx, flat) : measure_on_device(space, ctx, flat);
  if (shared_) shared_->write(scales_, before);
}

void Quantiser::measure_on_host(const StepContext& ctx, const Flat& flat) {
  for (std::size_t t = 0; t < layout_.tensors().size(); ++t) {
    const TensorSlot& slot = layout_.tensors()[t];
    const kernels::Blend rule = lion_blend(ctx.scalars_of_group(slot.spec.group));
    for (std::size_t at = 0, k = first_scale_[t]; at < slot.n; at += row_[t], ++k) {
      const std::size_t begin = slot.offset + at;
      scales_[k] = ctx.is_unused(t) ? 0 : measure(flat, rule, t, begin, begin + row_[t]);
    }
  }
}

// Quantises a part of a piece with the scale c.
void Quantiser::quantise_part(float c, int largest, std::span<const float> u,
                              std::span<const float> r, std::span<std::int8_t> q,
                              std::span<float> e_next) const {
  const float step = step_of(c, largest);
  const float inv = step == 0 ? 0.0f : 1.0f / step;
  if (r.empty()) {
    kernels::quantise(u, inv, largest, q);
  } else {
    kernels::quantise(u, inv, largest, r, q);
  }
  if (!e_next.empty()) kernels::keep_level_error(u, q, step, e_next);
}

// Quantises coordinates from `begin` of the tensor on, cut where a scope ends.
void Quantiser::quantise_rows(const Piece& piece, std::size_t begin, int largest,
                              std::span<const float> u, std::span<const float> r,
                              std::span<std::int8_t> q, std::span<float> e_next) {
  const std::size_t row = row_[piece.tensor];
  for (std::size_t i = 0; i < u.size();) {
    const std::size_t scope = (begin + i) / row;
    const std::size_t n = std::min(u.size() - i, (scope + 1) * row - (begin + i));
    quantise_part(scales_[first_scale_[piece.tensor] + scope], largest, u.subspan(i, n),
                  r.empty() ? r : r.subspan(i, n), q.subspan(i, n),
                  e_next.empty() ? e_next : e_next.subspan(i, n));
    i += n;
  }
}

// Coordinates [begin, begin + q.size()) of the piece with known scales and no error feedback: the
// blend is never stored. Returns the first that is not finite, or kAllFinite.
std::size_t Quantiser::encode_at_once(const Piece& piece, const kernels::Blend& rule,
                                      const Buffers& b, std::size_t begin, int largest,
                                      std::span<std::int8_t> q) const {
  const std::size_t in_tensor = piece.begin - layout_.tensors()[piece.tensor].offset + begin;
  const std::size_t row = row_[piece.tensor], first = piece.begin + begin;
  alignas(64) std::array<float, kScaleBlock> block;
  const auto g = b.g.read(piece.tensor, first, first + q.size(), block);
  std::size_t bad = kernels::kAllFinite;
  for (std::size_t i = 0; i < q.size();) {
    const std::size_t scope = (in_tensor + i) / row;
    const std::size_t n = std::min(q.size() - i, (scope + 1) * row - (in_tensor + i));
    const float step = step_of(scales_[first_scale_[piece.tensor] + scope], largest);
    const std::size_t found =
        kernels::lion_quantise(g.subspan(i, n), rule, step == 0 ? 0.0f : 1.0f / step, largest,
                               b.m.subspan(begin + i, n), q.subspan(i, n));
    if (found != kernels::kAllFinite && bad == kernels::kAllFinite) bad = begin + i + found;
    i += n;
  }
  return bad;
}

// The same in separate steps: the blend, its scale and its levels, which stay in the L1 cache.
std::size_t Quantiser::encode_in_steps(const Piece& piece, const StepContext& ctx, const Buffers& b,
                                       std::size_t begin, int largest, std::span<std::int8_t> q) {
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
  const auto r = std::span(random).first(options_.stochastic ? n : 0);
  if (!r.empty())
    kernels::uniforms({ctx.seed, ctx.step, ctx.rank, piece.in_whole(piece.begin + begin)}, r);
  const auto e_next = b.e_next.empty() ? b.e_next : b.e_next.subspan(begin, n);
  if (options_.granularity == Granularity::kBlock) {
    quantise_part(reference(u), largest, u, r, q, e_next);
  } else {
    const std::size_t in_tensor = piece.begin + begin - layout_.tensors()[piece.tensor].offset;
    quantise_rows(piece, in_tensor, largest, u, r, q, e_next);
  }
  return found == kernels::kAllFinite ? found : begin + found;
}

std::size_t Quantiser::encode(const Piece& piece, const StepContext& ctx, const Buffers& b,
                              int bits, const TakeLevels& take) {
  alignas(64) std::array<std::int8_t, kScaleBlock> levels;
  const int largest = kernels::largest_level(bits);
  const bool at_once = needs_whole_gradient() && !options_.stochastic && b.e.empty();
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
