// Contents of the arrays, and their comparison.
// SPDX-License-Identifier: Apache-2.0
#include "bench/kernels/arrays.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/words.h"
#include "pride/random_bits.h"

namespace pride::app {
namespace {

// From a table, because filling hundreds of megabytes should take no minute.
void fill(std::span<float> x, std::uint64_t seed, bool awkward) {
  PhiloxStream random(seed, 0, 0);
  std::vector<float> table(4099);
  for (float& value : table) value = 2 * random.next_unit() - 0.9999999f;
  for (std::size_t i = 0; awkward && i < table.size(); i += 61) {
    constexpr std::array<float, 3> kAwkward = {0.0f, -0.0f, 0x1p-140f};
    table[i] = kAwkward[i / 61 % kAwkward.size()];
  }
  for (std::size_t at = 0; at < x.size(); at += table.size()) {
    std::copy_n(table.begin(), std::min(table.size(), x.size() - at), x.begin() + at);
  }
}

// The lowest bits of random numbers, where `mask` is set.
template <typename T>
void fill(std::span<T> values, std::uint64_t seed, std::uint64_t mask) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<T>(mix64(seed, i) & mask);
  }
}

// Equal bits, so that -0 is not 0 and NaN equals itself.
template <typename T>
std::size_t count_differing(const KernelStore<T>& a, const KernelStore<T>& b) {
  std::size_t differing = 0;
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    differing += std::memcmp(&a.values[i], &b.values[i], sizeof(T)) != 0 ? 1 : 0;
  }
  return differing;
}

}  // namespace

KernelArrays::KernelArrays(const KernelShape& shape, std::size_t n, bool awkward)
    : n_(n),
      n_words_(words_for(n)),
      stores_(KernelStore<float>(shape.floats, 64 * n_words_, n),
              KernelStore<std::uint64_t>(shape.bits, n_words_, n_words_),
              KernelStore<std::uint32_t>(shape.numbers, 64 * n_words_, 64 * n_words_),
              KernelStore<BFloat16>(shape.halves, n, n)) {
  constexpr std::uint64_t kAll = ~std::uint64_t{0}, kBelowTwo = 0xBFFF;  // of bfloat16
  for (std::size_t i = 0; i < shape.floats; ++i) fill(array(i), i, awkward);
  fill(std::get<1>(stores_).values, 9, kAll);
  fill(std::get<2>(stores_).values, 10, kAll);
  fill(std::get<3>(stores_).values, 11, kBelowTwo);
  for (std::size_t row = 0; row < shape.bits && n % 64 != 0; ++row) {
    bits(row).back() &= kAll >> (64 - n % 64);
  }
}

std::size_t KernelArrays::differing(const KernelArrays& other) const {
  const auto in = [&]<std::size_t... Kind>(std::index_sequence<Kind...>) {
    return (count_differing(std::get<Kind>(stores_), std::get<Kind>(other.stores_)) + ...);
  };
  return in(std::make_index_sequence<4>()) + (result != other.result ? 1 : 0);
}

}  // namespace pride::app
