// SPDX-License-Identifier: Apache-2.0
#include "codecs/sparse.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/kernels.h"

namespace pride {
namespace {

constexpr std::size_t kCountBytes = 8;
using ReadView = SparseView<const std::byte>;

// Fields of a fixed number of bits, one after the other.
class BitWriter {
 public:
  BitWriter(std::span<std::uint64_t> words, std::size_t width) : words_(words), width_(width) {}
  void put(std::uint64_t value) {
    if (width_ == 0) return;
    const std::size_t shift = at_ % 64;
    words_[at_ / 64] |= value << shift;
    if (shift + width_ > 64) words_[at_ / 64 + 1] |= value >> (64 - shift);
    at_ += width_;
  }

 private:
  std::span<std::uint64_t> words_;
  std::size_t width_, at_ = 0;
};

std::uint64_t field_at(std::span<const std::uint64_t> words, std::size_t width, std::size_t i) {
  if (width == 0) return 0;
  const std::size_t at = i * width, shift = at % 64;
  std::uint64_t value = words[at / 64] >> shift;
  if (shift + width > 64) value |= words[at / 64 + 1] << (64 - shift);
  return value & ((std::uint64_t{1} << width) - 1);
}

bool zero_from(std::span<const std::uint64_t> words, std::size_t bit) {
  for (std::size_t w = bit / 64; w < words.size(); ++w) {
    if ((words[w] >> (w == bit / 64 ? bit % 64 : 0)) != 0) return false;
  }
  return true;
}

// Calls visit(entry, index) for every bit that is set, in order. Elias-Fano: entry j with the high
// part h is bit h + j.
template <typename Visit>
void for_each_entry(const ReadView& view, Visit&& visit) {
  std::size_t entry = 0;
  for (std::size_t w = 0; w < view.high.size(); ++w) {
    for (std::uint64_t left = view.high[w]; left != 0; left &= left - 1, ++entry) {
      const std::size_t bit = 64 * w + static_cast<std::size_t>(std::countr_zero(left));
      if (view.bitmap) {
        visit(entry, bit);
      } else {
        visit(entry, ((bit - entry) << view.low_bits) | field_at(view.low, view.low_bits, entry));
      }
    }
  }
}

std::size_t count_bits(std::span<const std::uint64_t> words) {
  std::size_t n = 0;
  for (const std::uint64_t word : words) n += static_cast<std::size_t>(std::popcount(word));
  return n;
}

void check_entries(const ReceivedFrame& f, const ReadView& view) {
  const std::size_t n_set = count_bits(view.high);
  if (n_set != view.k) {
    f.refuse("marks ", n_set, " indices, but counts ", view.k, " entries");
  }
  if (view.bitmap && !zero_from(view.high, view.n)) f.refuse("has an index beyond ", view.n);
  if (!zero_from(view.low, view.k * view.low_bits))
    f.refuse("has nonzero padding after its indices");
  std::size_t floor = 0;  // lower bound of the next index
  for_each_entry(view, [&](std::size_t entry, std::size_t index) {
    if (index < floor)
      f.refuse("has entry ", entry, " at index ", index, ", which is not ascending");
    if (index >= view.n) f.refuse("has index ", index, " of ", view.n, " coordinates");
    floor = index + 1;
  });
  const std::size_t bad = kernels::first_non_finite(view.values);
  if (bad != kernels::kAllFinite) f.refuse("has NaN or Inf as the value of entry ", bad);
  if (!padding_is_zero(std::as_bytes(view.values)))
    f.refuse("has nonzero padding after its values");
}

}  // namespace

SparseShape::SparseShape(std::size_t n_coords, std::size_t entries) : n(n_coords), k(entries) {
  if (k == 0) return;
  high_words = words_for(n);
  const auto low = static_cast<std::size_t>(std::bit_width(n / k)) - 1;
  const std::size_t packed = words_for(k * low), unary = words_for(k + ((n - 1) >> low));
  if (packed + unary >= high_words) return;
  bitmap = false;
  low_bits = low;
  low_words = packed;
  high_words = unary;
}

FrameKind sparse_frames() {
  return {.codec = Codec::kSparse,
          .name = "sparse",
          .unused_bits = false,
          .sized = false,
          .bytes = [](const Shard& s) {
            return SparseView<std::byte>(nullptr, s.size(), s.size()).bytes;
          }};
}

std::uint64_t sparse_bytes_bound(std::size_t n, std::size_t k, std::size_t n_payloads) {
  constexpr std::uint64_t kPadding = 8 + 8 + 4;  // low bits or bitmap, high bits, values
  const std::uint64_t overhead = n_payloads * (kCountBytes + kPadding);
  if (k == 0) return overhead;
  const auto dk = static_cast<double>(k), dn = static_cast<double>(n);
  const double index_bits = std::min(dk * (2 + std::log2(dn / dk)), dn);
  return overhead + static_cast<std::uint64_t>(std::ceil(index_bits / 8)) + 4 * k;
}

void write_sparse(std::span<const std::uint64_t> mask, std::span<const float> values,
                  ByteBuffer& frame) {
  const std::size_t k = count_bits(mask);
  frame.resize(SparseView<std::byte>(nullptr, values.size(), k).bytes);
  const SparseView view(frame.span().data(), values.size(), k);
  std::ranges::fill(frame.span().subspan(kHeaderBytes), std::byte{0});
  view.count[0] = k;
  if (view.bitmap && k > 0) std::ranges::copy(mask, view.high.begin());

  BitWriter low_fields(view.low, view.low_bits);
  const std::uint64_t low_mask = (std::uint64_t{1} << view.low_bits) - 1;
  std::size_t entry = 0;
  for (std::size_t w = 0; w < mask.size(); ++w) {
    for (std::uint64_t left = mask[w]; left != 0; left &= left - 1, ++entry) {
      const std::size_t index = 64 * w + static_cast<std::size_t>(std::countr_zero(left));
      view.values[entry] = values[index];
      if (view.bitmap) continue;
      low_fields.put(index & low_mask);
      set_bit(view.high, (index >> view.low_bits) + entry);
    }
  }
}

void add_sparse(const ReceivedFrame& f, std::span<float> sum) {
  const auto frame = f.frame.head;
  const std::size_t payload = frame.size() - kHeaderBytes;
  if (payload < kCountBytes) f.refuse("has ", payload, " bytes of payload");
  const std::uint64_t k = Parts<const std::byte>(frame.data()).words(1)[0];
  if (k > sum.size()) f.refuse("has ", k, " entries of ", sum.size(), " coordinates");
  const ReadView view(frame.data(), sum.size(), static_cast<std::size_t>(k));
  if (frame.size() != view.bytes) {
    f.refuse("has ", payload, " bytes for ", k, " entries, which take ", view.bytes - kHeaderBytes);
  }
  check_entries(f, view);
  for_each_entry(view,
                 [&](std::size_t entry, std::size_t index) { sum[index] += view.values[entry]; });
}

}  // namespace pride
