// Floats to levels and back, levels to packed codes and back.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/levels.h"

#include <algorithm>

#include "kernels/isa.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/levels.cpp"
#include "hwy/foreach_target.h"
// After foreach_target:
#include "hwy/highway.h"
#include "kernels/philox-inl.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pride::kernels::HWY_NAMESPACE {

void to_nearest(std::span<const float> u, float inv, int largest, std::int8_t* q) {
  for_each_vector(u.size(), {}, [=](auto d, std::size_t i) HWY_ATTR {
    const auto y = scaled(d, hn::LoadU(d, u.data() + i), inv, largest);
    store_levels(d, hn::NearestInt(y), q + i);
  });
}

void to_random(std::span<const float> u, float inv, int largest, const float* r, std::int8_t* q) {
  for_each_vector(u.size(), {}, [=](auto d, std::size_t i) HWY_ATTR {
    const auto y = scaled(d, hn::LoadU(d, u.data() + i), inv, largest), below = hn::Floor(y);
    const auto up = hn::Lt(hn::LoadU(d, r + i), hn::Sub(y, below));
    const auto rounded = hn::Add(below, hn::IfThenElseZero(up, hn::Set(d, 1.0f)));
    store_levels(d, hn::ConvertTo(hn::RebindToSigned<decltype(d)>(), rounded), q + i);
  });
}

constexpr std::uint32_t kLevelWords = 0x4C510000u;

void unit_floats(const PhiloxKey& key, std::span<float> r) {
  alignas(64) std::uint32_t words[64];
  for (std::size_t i = 0; i < r.size(); i += 64) {
    philox_words(key, kLevelWords, key.first_coord + i, words);
    for (std::size_t j = 0; j < std::min<std::size_t>(64, r.size() - i); ++j) {
      r[i + j] = static_cast<float>(words[j] >> 8) * 0x1p-24f;
    }
  }
}

// q*step
template <class D>
HWY_INLINE hn::Vec<D> value_of(D d, const std::int8_t* q, float step) {
  const auto levels = hn::LoadU(hn::Rebind<std::int8_t, D>(), q);
  return hn::Mul(hn::ConvertTo(d, hn::PromoteTo(hn::RebindToSigned<D>(), levels)),
                 hn::Set(d, step));
}

void level_errors(const float* u, std::span<const std::int8_t> q, float step, float* e) {
  for_each_vector(q.size(), {}, [=](auto d, std::size_t i) HWY_ATTR {
    hn::StoreU(hn::Sub(hn::LoadU(d, u + i), value_of(d, q.data() + i, step)), d, e + i);
  });
}
void level_floats(std::span<const std::int8_t> q, float step, float* x) {
  for_each_vector(q.size(), {}, [=](auto d, std::size_t i) HWY_ATTR {
    hn::StoreU(value_of(d, q.data() + i, step), d, x + i);
  });
}

void add_floats(std::span<const float> e, float* u) {
  for_each_vector(e.size(), {}, [=](auto d, std::size_t i) HWY_ATTR {
    hn::StoreU(hn::Add(hn::LoadU(d, u + i), hn::LoadU(d, e.data() + i)), d, u + i);
  });
}

#if PRIDE_SIMD
using ByteTag = hn::CappedTag<std::uint8_t, 64>;
#endif

// Packs 64 levels into word 0 of lines that lie `width` words apart.
template <int kBits>
HWY_INLINE void pack_word(const std::int8_t* q, std::size_t width, std::uint64_t* line) {
  constexpr auto kOffset = static_cast<std::uint8_t>(largest_level(kBits));
  std::uint64_t bits[kBits] = {};
#if PRIDE_SIMD
  const ByteTag d;
  for (std::size_t i = 0; i < 64; i += hn::Lanes(d)) {
    const auto code =
        hn::Add(hn::LoadU(d, reinterpret_cast<const std::uint8_t*>(q) + i), hn::Set(d, kOffset));
    for (int b = 0; b < kBits; ++b) {
      std::uint64_t part = 0;
      const auto bit = hn::Set(d, static_cast<std::uint8_t>(1u << b));
      hn::StoreMaskBits(d, hn::TestBit(code, bit), reinterpret_cast<std::uint8_t*>(&part));
      bits[b] |= part << i;
    }
  }
#else
  for (std::size_t i = 0; i < 64; ++i) {
    const auto code = static_cast<std::uint8_t>(static_cast<std::uint8_t>(q[i]) + kOffset);
    for (int b = 0; b < kBits; ++b) bits[b] |= std::uint64_t{(code >> b) & 1u} << i;
  }
#endif
  for (int b = 0; b < kBits; ++b) line[static_cast<std::size_t>(b) * width] = bits[b];
}

template <int kBits>
void pack_bits(std::span<const std::int8_t> q, LevelShape shape, std::size_t first,
               std::span<std::uint64_t> lines) {
  std::size_t i = 0;
  for (; i + 64 <= q.size(); i += 64, ++first) {
    pack_word<kBits>(q.data() + i, shape.width(first), lines.data() + shape.at(first));
  }
  if (i == q.size()) return;
  std::int8_t last[64];  // -largest has code 0
  std::fill(std::begin(last), std::end(last), static_cast<std::int8_t>(-largest_level(kBits)));
  std::copy(q.begin() + static_cast<std::ptrdiff_t>(i), q.end(), last);
  pack_word<kBits>(last, shape.width(first), lines.data() + shape.at(first));
}

void pack(std::span<const std::int8_t> q, LevelShape shape, std::size_t first,
          std::span<std::uint64_t> lines) {
  with_level_bits(shape.bits, [&](auto bits) { pack_bits<bits>(q, shape, first, lines); });
}

HWY_INLINE void unpack_word(const std::uint64_t* line, LevelShape shape, std::size_t width,
                            std::int8_t* q) {
  const auto offset = static_cast<std::uint8_t>(largest_level(shape.bits));
#if PRIDE_SIMD
  const ByteTag d;
  for (std::size_t i = 0; i < 64; i += hn::Lanes(d)) {
    auto code = hn::Zero(d);
    for (int b = 0; b < shape.bits; ++b) {
      std::uint8_t bytes[8];
      const std::uint64_t bits = line[static_cast<std::size_t>(b) * width] >> i;
      std::memcpy(bytes, &bits, sizeof(bits));
      const auto bit = hn::Set(d, static_cast<std::uint8_t>(1u << b));
      code = hn::Or(code, hn::IfThenElseZero(hn::LoadMaskBits(d, bytes), bit));
    }
    hn::StoreU(hn::Sub(code, hn::Set(d, offset)), d, reinterpret_cast<std::uint8_t*>(q) + i);
  }
#else
  for (std::size_t i = 0; i < 64; ++i) {
    unsigned code = 0;
    for (int b = 0; b < shape.bits; ++b) {
      code |= static_cast<unsigned>((line[static_cast<std::size_t>(b) * width] >> i) & 1u) << b;
    }
    q[i] = static_cast<std::int8_t>(static_cast<std::uint8_t>(code - offset));
  }
#endif
}

void unpack(std::span<const std::uint64_t> lines, LevelShape shape, std::size_t first,
            std::span<std::int8_t> q) {
  std::size_t i = 0;
  for (; i + 64 <= q.size(); i += 64, ++first) {
    unpack_word(lines.data() + shape.at(first), shape, shape.width(first), q.data() + i);
  }
  if (i == q.size()) return;
  std::int8_t last[64];
  unpack_word(lines.data() + shape.at(first), shape, shape.width(first), last);
  std::copy_n(last, q.size() - i, q.begin() + static_cast<std::ptrdiff_t>(i));
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace pride::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pride::kernels {

HWY_EXPORT(to_nearest);
HWY_EXPORT(to_random);
HWY_EXPORT(unit_floats);
HWY_EXPORT(level_errors);
HWY_EXPORT(level_floats);
HWY_EXPORT(add_floats);
HWY_EXPORT(pack);
HWY_EXPORT(unpack);

void quantise(std::span<const float> u, float inv, int largest, std::span<std::int8_t> q) noexcept {
  PRIDE_DISPATCH(to_nearest)(u, inv, largest, q.data());
}

void quantise(std::span<const float> u, float inv, int largest, std::span<const float> r,
              std::span<std::int8_t> q) noexcept {
  PRIDE_DISPATCH(to_random)(u, inv, largest, r.data(), q.data());
}

void uniforms(const PhiloxKey& key, std::span<float> r) noexcept {
  PRIDE_DISPATCH(unit_floats)(key, r);
}

void keep_level_error(std::span<const float> u, std::span<const std::int8_t> q, float step,
                      std::span<float> e) noexcept {
  PRIDE_DISPATCH(level_errors)(u.data(), q, step, e.data());
}

void levels_to_floats(std::span<const std::int8_t> q, float step, std::span<float> x) noexcept {
  PRIDE_DISPATCH(level_floats)(q, step, x.data());
}

void add(std::span<const float> e, std::span<float> u) noexcept {
  PRIDE_DISPATCH(add_floats)(e, u.data());
}

void pack_levels(std::span<const std::int8_t> q, LevelShape shape, std::size_t first,
                 std::span<std::uint64_t> lines) noexcept {
  PRIDE_DISPATCH(pack)(q, shape, first, lines);
}

void unpack_levels(std::span<const std::uint64_t> lines, LevelShape shape, std::size_t first,
                   std::span<std::int8_t> q) noexcept {
  PRIDE_DISPATCH(unpack)(lines, shape, first, q);
}

}  // namespace pride::kernels
#endif  // HWY_ONCE
