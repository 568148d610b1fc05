// SPDX-License-Identifier: Apache-2.0
#include "methods/sparse_method.h"

#include <algorithm>
#include <cmath>

#include "exchange/sparse_gather.h"
#include "kernels/kernels.h"
#include "kernels/sparse.h"
#include "methods/options.h"
#include "pride/error.h"

namespace pride::methods {
namespace {

constexpr double kDefaultRatio = 0.04;  // compression rate of Liu et al. 2024, Section 5

// first tensor of this rank with a NaN or Inf
std::optional<Poison> find_poison(const Layout& layout, const StepContext& ctx, ConstView g) {
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    const TensorSlot& slot = layout.tensors()[t];
    if (ctx.is_absent(t)) continue;
    if (kernels::first_non_finite(g.f32(slot.offset, slot.offset + slot.n)) !=
        kernels::kAllFinite) {
      return Poison{ctx.rank, static_cast<std::uint32_t>(t)};
    }
  }
  return std::nullopt;
}

}  // namespace

SparseMethod::SparseMethod(std::string name, const MethodContext& ctx, bool global)
    : layout_(ctx.layout),
      world_(ctx.world),
      ratio_(number_option(name, ctx, "ratio", 0, 1)),
      global_(global),
      v_(ctx.layout.flat_size()),
      mask_(ctx.layout.flat_size() / 64) {
  PRIDE_CHECK(ratio_ > 0, name, ": option ratio = 0: nothing would ever be sent");
}

// A rank with a bad gradient takes nothing in and sends nothing: its residual stays finite.
void SparseMethod::agree(Communicator&, const StepContext& ctx, ConstView g) {
  std::fill(mask_.begin(), mask_.end(), 0);
  poison_ = find_poison(layout_, ctx, g);
  if (poison_) return;
  accumulate(ctx, g);
  select(ctx);
}

std::size_t SparseMethod::entries_of(std::size_t n, std::int64_t step) const {
  // 0.04 * 25 must be 1, whatever it rounds to
  const double k = std::ceil(ratio_at(step) * static_cast<double>(n) - 1e-9);
  return std::min(n, static_cast<std::size_t>(std::max(k, 1.0)));
}

// Entries of tensors that are absent here are never sent.
void SparseMethod::select(const StepContext& ctx) {
  // padding is zero, and zeros are never among the largest
  kernels::TopK top;
  if (global_) top = kernels::top_k(v_.span(), entries_of(layout_.n_coords(), ctx.step));
  for (std::size_t t = 0; t < layout_.tensors().size(); ++t) {
    const TensorSlot& slot = layout_.tensors()[t];
    const auto v = residual(slot);
    const auto mask = std::span(mask_).subspan(slot.offset / 64, kernels::words_for(slot.n));
    if (!global_) top = kernels::top_k(v, entries_of(slot.n, ctx.step));
    kernels::select(v, top, mask);
    if (ctx.is_absent(t)) std::fill(mask.begin(), mask.end(), 0);
  }
}

std::span<const std::uint64_t> SparseMethod::mask_of(const Bucket& b) const {
  return std::span(mask_).subspan(b.begin / 64, b.size() / 64);
}

void SparseMethod::encode(const Bucket& b, ConstView, const StepContext& ctx, Wire& w) {
  const std::span<const float> values = v_.span().subspan(b.begin, b.size());
  exchange::encode_sparse(b, mask_of(b), values, w);
  w.poison = poison_;
  // finite gradients may have added up to Inf, which is then the largest and would be sent
  const std::size_t bad = w.poison ? kernels::kAllFinite : kernels::first_non_finite(values);
  if (bad == kernels::kAllFinite) return;
  const auto& slots = layout_.tensors();
  const auto after =
      std::upper_bound(slots.begin(), slots.end(), b.begin + bad,
                       [](std::size_t at, const TensorSlot& slot) { return at < slot.offset; });
  w.poison = Poison{ctx.rank, static_cast<std::uint32_t>(after - slots.begin() - 1)};
}

void SparseMethod::exchange(Communicator& c, const Bucket& b, const StepContext& ctx, Wire& w) {
  exchange::sparse_gather(c, b, ctx, w);
}

// x = (1 - lr wd) x - lr mean
void SparseMethod::apply(const Bucket& b, const Wire& w, const StepContext& ctx, View x) {
  const auto mean = exchange::mean_of_sparse(w);
  for (const Shard& shard : b.shards) {
    for (const Piece& p : shard.pieces) {
      const StepScalars& s = ctx.groups[static_cast<std::size_t>(p.group)];
      kernels::sgd(mean.subspan(p.begin - b.begin, p.n()), {s.decay, s.lr}, x.f32(p.begin, p.end));
    }
  }
  commit(mask_of(b), b.begin, b.end);
}

void SparseMethod::commit(std::span<const std::uint64_t> mask, std::size_t begin, std::size_t end) {
  kernels::clear_selected(mask, v_.span().subspan(begin, end - begin));
}

std::size_t SparseMethod::max_entries(std::int64_t step) const {
  if (global_) return entries_of(layout_.n_coords(), step);
  std::size_t most = 0;
  for (const TensorSlot& slot : layout_.tensors()) most += entries_of(slot.n, step);
  return most;
}

Cost SparseMethod::cost(std::span<const Bucket> buckets, int, std::int64_t step) const {
  return exchange::sparse_cost(buckets, max_entries(step));
}

MethodInfo sparse_method_info(int world) {
  MethodInfo info;
  // value and index of an entry: 32 bits, and at most 2 + log2(1/ratio)
  info.bits_up = kDefaultRatio * (32 + 2 + std::log2(1 / kDefaultRatio));
  info.bits_down = (world - 1) * info.bits_up;
  info.exact_cost = false;
  info.growth = "N";
  info.default_lr = 0.1;
  info.options = {{"ratio", "0.04", "share of each tensor's entries that a step sends"}};
  return info;
}

}  // namespace pride::methods
