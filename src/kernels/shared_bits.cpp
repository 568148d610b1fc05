// cell_word: the bits of the cells that values lie in; SharedBits.
// Reads 4 and writes 0.125 bytes per coordinate.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kernels/isa.h"
#include "kernels/kernels.h"
#include "kernels/sign_calls.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/shared_bits.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

std::uint64_t cells_of(const float* x, std::size_t n, float per_cell) {
  constexpr float kNoFraction = 0x1p23f;
  std::uint64_t bits = 0;
  std::size_t i = 0;
#if PRIDE_SIMD
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const auto factor = hn::Set(d, per_cell), most = hn::Set(d, kNoFraction);
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    const auto y = hn::Mul(hn::LoadU(d, x + i), factor);
    // a comparison with NaN is false
    const auto inside = hn::IfThenElseZero(hn::Lt(hn::Abs(y), most), y);
    const auto cell = hn::ConvertTo(di, hn::Floor(inside));
    bits |= mask_bits(d, hn::RebindMask(d, hn::TestBit(cell, hn::Set(di, 1)))) << i;
  }
#endif
  for (; i < n; ++i) {
    const float y = x[i] * per_cell;
    if (!(std::abs(y) < kNoFraction)) continue;
    bits |= (static_cast<std::uint64_t>(static_cast<std::int32_t>(std::floor(y))) & 1) << i;
  }
  return bits;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(cells_of);

std::uint64_t cell_word(std::span<const float> x, float per_cell) noexcept {
  use_selected_isa();
  return HWY_DYNAMIC_DISPATCH(cells_of)(x.data(), x.size(), per_cell);
}

std::uint64_t SharedBits::at(std::size_t k) const noexcept {
  if (row != nullptr) return row[k] ^ flip;
  if (x.n == 0) return hash.at(k) ^ flip;
  alignas(64) float room[64];
  const std::size_t n = std::min<std::size_t>(64, x.n - 64 * k);
  return cell_word(x.subspan(64 * k, n).read(room), per_cell) ^ flip;
}

SharedBits SharedBits::from(std::size_t first) const noexcept {
  SharedBits bits = *this;
  bits.hash.first_word += first / 64;
  if (row != nullptr) bits.row += first / 64;
  if (x.n > 0) bits.x = x.subspan(first);
  return bits;
}

void CellBits::run() const noexcept {
  for (std::size_t k = 0; k < bits.size(); ++k) bits[k] = cells.at(k);
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
