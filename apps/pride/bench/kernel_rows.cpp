// What kernels work on, and the rows of the dense ones.
// SPDX-License-Identifier: Apache-2.0
#include "bench/kernel_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "bench/kernel_scalars.h"
#include "kernels/kernels.h"
#include "kernels/sparse.h"
#include "kernels/ternary.h"
#include "pride/random_bits.h"

namespace pride::app {
namespace {

using namespace kernels;

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

// Equal bits, so that -0 is not 0 and NaN equals itself.
template <typename T>
std::size_t count_differing(std::span<const T> a, std::span<const T> b) {
  std::size_t differing = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    differing += std::memcmp(&a[i], &b[i], sizeof(T)) != 0 ? 1 : 0;
  }
  return differing;
}

void make_positive(std::span<float> v) {
  for (float& value : v) value = std::abs(value);
}

AdamScalars adam_scalars() {
  return {.beta1 = 0.9f,
          .one_minus_beta1 = 0.1f,
          .beta2 = 0.999f,
          .one_minus_beta2 = 0.001f,
          .step_size = 1e-3f,
          .eps = 1e-8f,
          .decay = kStep.decay};
}

void add_optimizers(std::vector<KernelRow>& rows) {
  rows.push_back({.name = "dense_lion", .bytes = 20, .shape = {.floats = 3}, .run = [](auto& a) {
                    dense_lion(a.array(0), kBlend, kStep, a.array(1), a.array(2));
                  }});
  rows.push_back({.name = "adamw",
                  .bytes = 28,
                  .shape = {.floats = 4},
                  .run = [s = adam_scalars()](
                             auto& a) { adamw(a.array(0), s, a.array(1), a.array(2), a.array(3)); },
                  .prepare = [](auto& a) { make_positive(a.array(2)); }});
  rows.push_back({.name = "sgd_momentum", .bytes = 20, .shape = {.floats = 3}, .run = [](auto& a) {
                    sgd_momentum(a.array(0), 0.9f, false, kStep, a.array(1), a.array(2));
                  }});
  rows.push_back({.name = "sgd", .bytes = 12, .shape = {.floats = 2}, .run = [](auto& a) {
                    sgd(a.array(0), kStep, a.array(1));
                  }});
  rows.push_back({.name = "apply_decay", .bytes = 8, .shape = {.floats = 1}, .run = [](auto& a) {
                    apply_decay(kStep.decay, a.array(0));
                  }});
  rows.push_back({.name = "scale", .bytes = 8, .shape = {.floats = 1}, .run = [](auto& a) {
                    scale(0x1.000002p0f, a.array(0));
                  }});
}

void add_sums(std::vector<KernelRow>& rows, std::size_t n) {
  const std::string of = "/" + std::to_string(n);
  const double bytes = 4.0 * static_cast<double>(n) + 4;
  // into an array of its own: the mean of means would run towards a point
  rows.push_back(
      {.name = "mean_rows" + of, .bytes = bytes, .shape = {.floats = n + 1}, .run = [n](auto& a) {
         mean_rows(a.arrays(1, n), static_cast<int>(n), a.array(0));
       }});
  rows.push_back(
      {.name = "sum_rows" + of, .bytes = bytes, .shape = {.floats = n + 1}, .run = [n](auto& a) {
         sum_rows(a.arrays(1, n), a.array(0));
       }});
}

void add_reductions(std::vector<KernelRow>& rows) {
  const auto add = [&](const char* name, auto&& reduce) {
    rows.push_back({.name = name, .bytes = 4, .shape = {.floats = 1}, .run = [reduce](auto& a) {
                      a.result = std::bit_cast<std::uint64_t>(reduce(a.array(0)));
                    }});
  };
  add("first_non_finite", [](std::span<const float> x) { return first_non_finite(x); });
  add("sum_squares", [](std::span<const float> x) { return sum_squares(x); });
  add("sum", [](std::span<const float> x) { return sum(x); });
  add("max_abs", [](std::span<const float> x) { return static_cast<double>(max_abs(x)); });
}

void add_conversions(std::vector<KernelRow>& rows) {
  rows.push_back(
      {.name = "to_float", .bytes = 6, .shape = {.floats = 1, .halves = 1}, .run = [](auto& a) {
         to_float(a.halves(), a.array(0));
       }});
  rows.push_back(
      {.name = "to_bf16", .bytes = 6, .shape = {.floats = 1, .halves = 1}, .run = [](auto& a) {
         to_bf16(a.array(0), a.halves());
       }});
}

void append(std::vector<KernelRow>& rows, std::vector<KernelRow> more) {
  std::ranges::move(more, std::back_inserter(rows));
}

}  // namespace

KernelArrays::KernelArrays(const KernelShape& shape, std::size_t n, bool awkward)
    : n_(n),
      n_words_(words_for(n)),
      stride_(64 * n_words_),
      floats_(shape.floats * stride_),
      words_(shape.bits * n_words_),
      numbers_(shape.numbers * stride_),
      halves_(shape.halves * n) {
  for (std::size_t i = 0; i < shape.floats; ++i) fill(array(i), i, awkward);
  for (std::size_t k = 0; k < words_.size(); ++k) words_[k] = mix64(9, k);
  for (std::size_t i = 0; i < numbers_.size(); ++i) {
    numbers_[i] = static_cast<std::uint32_t>(mix64(10, i));
  }
  // upper halves of floats in (-2, 2)
  for (std::size_t i = 0; i < halves_.size(); ++i) {
    halves_[i] = BFloat16{static_cast<std::uint16_t>(mix64(11, i) & 0xBFFF)};
  }
  for (std::size_t row = 0; row < shape.bits; ++row) {
    rows.push_back(bits(row).data());
    if (n % 64 != 0) bits(row).back() &= ~std::uint64_t{0} >> (64 - n % 64);
  }
}

std::vector<const float*> KernelArrays::arrays(std::size_t first, std::size_t count) {
  std::vector<const float*> pointers;
  for (std::size_t i = 0; i < count; ++i) pointers.push_back(array(first + i).data());
  return pointers;
}

std::size_t KernelArrays::differing(const KernelArrays& other) const {
  return count_differing<float>(floats_.span(), other.floats_.span()) +
         count_differing<std::uint64_t>(words_, other.words_) +
         count_differing<std::uint32_t>(numbers_, other.numbers_) +
         count_differing<BFloat16>(halves_, other.halves_) + (result != other.result ? 1 : 0);
}

std::vector<KernelRow> dense_kernel_rows(std::span<const std::size_t> n_rows) {
  std::vector<KernelRow> rows;
  add_optimizers(rows);
  for (const std::size_t n : n_rows) add_sums(rows, n);
  add_reductions(rows);
  add_conversions(rows);
  return rows;
}

std::vector<KernelRow> kernel_rows(std::span<const std::size_t> n_rows) {
  std::vector<KernelRow> rows;
  rows.push_back({.name = "memcpy",
                  .bytes = 8,
                  .shape = {.floats = 2},
                  .run =
                      [](auto& a) {
                        std::memcpy(a.array(1).data(), a.array(0).data(), a.array(0).size_bytes());
                      },
                  .dispatched = false});
  append(rows, sign_kernel_rows(n_rows));
  append(rows, level_kernel_rows(n_rows));
  append(rows, code_kernel_rows(n_rows));
  append(rows, dense_kernel_rows(n_rows));
  return rows;
}

}  // namespace pride::app
