// cell_word: the bits of the cells that values lie in; SharedBits.
// Reads 4 and writes 0.125 bytes per coordinate.
// SPDX-License-Identifier: Apache-2.0
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
  for_each_vector(n, {}, [&](auto d, std::size_t i) HWY_ATTR {
    const hn::RebindToSigned<decltype(d)> di;
    const auto y = hn::Mul(hn::LoadU(d, x + i), hn::Set(d, per_cell));
    // a comparison with NaN is false
    const auto inside = hn::IfThenElseZero(hn::Lt(hn::Abs(y), hn::Set(d, kNoFraction)), y);
    const auto odd = hn::TestBit(hn::ConvertTo(di, hn::Floor(inside)), hn::Set(di, 1));
    bits |= mask_bits(d, hn::RebindMask(d, odd)) << i;
  });
  return bits;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(cells_of);

std::uint64_t cell_word(std::span<const float> x, float per_cell) noexcept {
  return PRIDE_DISPATCH(cells_of)(x.data(), x.size(), per_cell);
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
