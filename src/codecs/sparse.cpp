// SPDX-License-Identifier: Apache-2.0
#include "codecs/sparse.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "codecs/payload.h"
#include "kernels/kernels.h"
#include "pride/error.h"

namespace pride {
namespace {

constexpr std::size_t words_for(std::size_t bits) { return (bits + 63) / 64; }
constexpr std::size_t kCountBytes = 8;

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

struct Parts {
  std::span<const std::uint64_t> low, high;
  std::span<const float> values;
};

Parts parts_of(std::span<const std::byte> payload, const SparseShape& at) {
  return {words_at(payload, at.low_at, at.low_words),
          words_at(payload, at.high_at, at.high_words),
          {reinterpret_cast<const float*>(payload.data() + at.values_at), at.k}};
}

// Calls visit(entry, index) for every bit that is set, in order. Elias-Fano: entry j with the high
// part h is bit h + j.
template <typename Visit>
void for_each_entry(const SparseShape& at, const Parts& parts, Visit&& visit) {
  std::size_t entry = 0;
  for (std::size_t w = 0; w < parts.high.size(); ++w) {
    for (std::uint64_t left = parts.high[w]; left != 0; left &= left - 1, ++entry) {
      const std::size_t bit = 64 * w + static_cast<std::size_t>(std::countr_zero(left));
      if (at.bitmap) {
        visit(entry, bit);
      } else {
        visit(entry, ((bit - entry) << at.low_bits) | field_at(parts.low, at.low_bits, entry));
      }
    }
  }
}

class Refusal {
 public:
  Refusal(int from, const std::string& where) : from_(from), where_(where) {}
  template <typename... Args>
  [[noreturn]] void operator()(const Args&... what) const {
    throw CommError(concat(where_, ": the frame from rank ", from_, " ", what...));
  }

 private:
  int from_;
  const std::string& where_;
};

std::size_t count_bits(std::span<const std::uint64_t> words) {
  std::size_t n = 0;
  for (const std::uint64_t word : words) n += static_cast<std::size_t>(std::popcount(word));
  return n;
}

// REQUIRES: payload.size() == at.bytes.
void check_parts(const SparseShape& at, const Parts& parts, std::span<const std::byte> payload,
                 const Refusal& refuse) {
  const std::size_t n_set = count_bits(parts.high);
  if (n_set != at.k) refuse("marks ", n_set, " indices, and says that it has ", at.k, " entries");
  if (at.bitmap && !zero_from(parts.high, at.n)) refuse("has an index beyond ", at.n);
  if (!zero_from(parts.low, at.k * at.low_bits)) refuse("has bits set behind its indices");
  std::size_t floor = 0;  // the least that the next index may be
  for_each_entry(at, parts, [&](std::size_t entry, std::size_t index) {
    if (index < floor) refuse("has entry ", entry, " at index ", index, ", which does not ascend");
    if (index >= at.n) refuse("has index ", index, " of ", at.n, " coordinates");
    floor = index + 1;
  });
  const std::size_t bad = kernels::first_non_finite(parts.values);
  if (bad != kernels::kAllFinite) refuse("has NaN or Inf as the value of entry ", bad);
  const auto padding = payload.subspan(at.values_at + 4 * at.k);
  if (std::ranges::any_of(padding, [](std::byte b) { return b != std::byte{0}; })) {
    refuse("has bits set behind its values");
  }
}

}  // namespace

SparseShape::SparseShape(std::size_t n_coords, std::size_t entries)
    : n(n_coords), k(entries), bitmap(true), low_bits(0), low_words(0), high_words(words_for(n)) {
  if (k == 0) high_words = 0;
  if (k > 0) {
    const auto low = static_cast<std::size_t>(std::bit_width(n / k)) - 1;
    const std::size_t packed = words_for(k * low), unary = words_for(k + ((n - 1) >> low));
    if (packed + unary < high_words) {
      bitmap = false;
      low_bits = low;
      low_words = packed;
      high_words = unary;
    }
  }
  low_at = kCountBytes;
  high_at = low_at + 8 * low_words;
  values_at = high_at + 8 * high_words;
  bytes = values_at + 8 * words_for(32 * k);
}

std::uint64_t sparse_bytes_bound(std::size_t n, std::size_t k, std::size_t n_payloads) {
  constexpr std::uint64_t kPadding = 8 + 8 + 4;  // low bits or bitmap, high bits, values
  const std::uint64_t overhead = n_payloads * (kCountBytes + kPadding);
  if (k == 0) return overhead;
  const auto dk = static_cast<double>(k), dn = static_cast<double>(n);
  const double index_bits = std::min(dk * (2 + std::log2(dn / dk)), dn);
  return overhead + static_cast<std::uint64_t>(std::ceil(index_bits / 8)) + 4 * k;
}

void write_sparse(std::span<const std::uint64_t> mask, std::span<const float> values, std::size_t k,
                  std::span<std::byte> payload) {
  const SparseShape at(values.size(), k);
  std::memset(payload.data(), 0, payload.size());
  const auto low = words_at(payload, at.low_at, at.low_words);
  const auto high = words_at(payload, at.high_at, at.high_words);
  auto* out = reinterpret_cast<float*>(payload.data() + at.values_at);
  words_at(payload, 0, 1)[0] = k;
  if (at.bitmap && k > 0) std::copy(mask.begin(), mask.end(), high.begin());

  BitWriter low_fields(low, at.low_bits);
  const std::uint64_t low_mask = (std::uint64_t{1} << at.low_bits) - 1;
  std::size_t entry = 0;
  for (std::size_t w = 0; w < mask.size(); ++w) {
    for (std::uint64_t left = mask[w]; left != 0; left &= left - 1, ++entry) {
      const std::size_t index = 64 * w + static_cast<std::size_t>(std::countr_zero(left));
      out[entry] = values[index];
      if (at.bitmap) continue;
      low_fields.put(index & low_mask);
      set_bit(high, (index >> at.low_bits) + entry);
    }
  }
}

void add_sparse(std::span<const std::byte> payload, int from, const std::string& where,
                std::span<float> sum) {
  const Refusal refuse(from, where);
  if (payload.size() < kCountBytes) refuse("has ", payload.size(), " bytes of payload");
  const std::uint64_t k = words_at(payload, 0, 1)[0];
  if (k > sum.size()) refuse("has ", k, " entries of ", sum.size(), " coordinates");
  const SparseShape at(sum.size(), static_cast<std::size_t>(k));
  if (payload.size() != at.bytes) {
    refuse("has ", payload.size(), " bytes for ", k, " entries, which take ", at.bytes);
  }
  const Parts parts = parts_of(payload, at);
  check_parts(at, parts, payload, refuse);
  for_each_entry(at, parts,
                 [&](std::size_t entry, std::size_t index) { sum[index] += parts.values[entry]; });
}

}  // namespace pride
