// The kernels of Lion Cub: levels of p bits, and votes on their sums.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>

#include "bench/kernel_rows.h"
#include "bench/kernel_scalars.h"
#include "kernels/levels.h"
#include "kernels/scaled_signs.h"
#include "pride/random_bits.h"

namespace pride::app {
namespace {

using namespace kernels;

constexpr float kScale = 0.5f;  // mean magnitude of the arrays

// Calls body(at, k) for each block [at, at + k).
template <typename Body>
void each_block(const KernelArrays& a, const Body& body) {
  for (std::size_t at = 0; at < a.n(); at += KernelArrays::kBlock) {
    body(at, std::min(KernelArrays::kBlock, a.n() - at));
  }
}

float inverse_step(int largest) { return kScale * static_cast<float>(largest); }

// A rank's levels of p bits, its scale being known, to nearest and then stochastic.
void add_encoding(std::vector<KernelRow>& rows, int bits) {
  const std::string of = "/p" + std::to_string(bits);
  const auto n_lines = static_cast<std::size_t>(bits);
  const int largest = largest_level(bits);
  const double packed = bits / 8.0;
  rows.push_back({.name = "lion_quantise+pack_levels" + of,
                  .bytes = 12 + packed,
                  .shape = {.floats = 2, .bits = n_lines},
                  .run = [=](auto& a) {
                    const LevelShape shape{a.n_words(), bits};
                    each_block(a, [&](std::size_t at, std::size_t k) {
                      const std::span q = std::span(a.levels).first(k);
                      a.result +=
                          lion_quantise(a.array(0).subspan(at, k), kBlend, inverse_step(largest),
                                        largest, a.array(1).subspan(at, k), q);
                      pack_levels(q, shape, at / 64, a.lines(0, n_lines));
                    });
                  }});
  rows.push_back({.name = "quantise+pack_levels" + of,
                  .bytes = 4 + packed,
                  .shape = {.floats = 1, .bits = n_lines},
                  .run = [=](auto& a) {
                    const LevelShape shape{a.n_words(), bits};
                    each_block(a, [&](std::size_t at, std::size_t k) {
                      const std::span q = std::span(a.levels).first(k);
                      PhiloxKey key = kKey;
                      key.first_coord = at;
                      uniforms(key, std::span(a.block).first(k));
                      quantise(a.array(0).subspan(at, k), inverse_step(largest), largest,
                               std::span(a.block).first(k), q);
                      pack_levels(q, shape, at / 64, a.lines(0, n_lines));
                    });
                  }});
  rows.back().name = "uniforms+" + rows.back().name;
}

// Codes whose bits are all set are none of the levels'.
void clear_impossible(KernelArrays& a, LevelShape shape, std::size_t line) {
  const auto lines = a.lines(line, static_cast<std::size_t>(shape.bits));
  for (std::size_t word = 0; word < shape.n_words; ++word) {
    std::uint64_t impossible = ~std::uint64_t{0};
    const std::size_t first = shape.at(word);
    for (int b = 0; b < shape.bits; ++b) {
      impossible &= lines[first + static_cast<std::size_t>(b) * shape.width(word)];
    }
    lines[first] &= ~impossible;
  }
}

void add_votes(std::vector<KernelRow>& rows, int bits, std::size_t n) {
  const auto n_lines = static_cast<std::size_t>(bits);
  const auto prepare = [=](KernelArrays& a) {
    for (std::size_t r = 0; r < n; ++r) clear_impossible(a, {a.n_words(), bits}, r * n_lines);
  };
  const auto lines_of = [=](KernelArrays& a) {
    std::vector<const std::uint64_t*> lines;
    for (std::size_t r = 0; r < n; ++r) lines.push_back(a.bits(r * n_lines).data());
    return lines;
  };
  const std::string of = "/" + std::to_string(n) + "/p" + std::to_string(bits);
  const double read = static_cast<double>(n) * bits / 8;
  rows.push_back(
      {.name = "vote_levels" + of,
       .bytes = read + 1.0 / 8,
       .shape = {.bits = n * n_lines + 1},
       .run =
           [=](auto& a) {
             const auto lines = lines_of(a);
             a.result = vote_levels({lines, {a.n_words(), bits}}, kHash, a.bits(n * n_lines));
           },
       .prepare = prepare});
  rows.push_back({.name = "vote_levels_ternary" + of,
                  .bytes = read + 2.0 / 8,
                  .shape = {.bits = n * n_lines + 2},
                  .run =
                      [=](auto& a) {
                        const auto lines = lines_of(a);
                        a.result =
                            vote_levels_ternary({lines, {a.n_words(), bits}}, a.bits(n * n_lines),
                                                a.bits(n * n_lines + 1));
                      },
                  .prepare = prepare});
}

// Scales, and error feedback: what goes with the levels.
void add_around(std::vector<KernelRow>& rows) {
  rows.push_back({.name = "add", .bytes = 12, .shape = {.floats = 2}, .run = [](auto& a) {
                    add(a.array(0), a.array(1));
                  }});
  rows.push_back({.name = "lion_blend", .bytes = 16, .shape = {.floats = 3}, .run = [](auto& a) {
                    a.result = lion_blend(a.array(0), kBlend, a.array(1), a.array(2));
                  }});
  rows.push_back(
      {.name = "blend_only+sum_abs", .bytes = 8, .shape = {.floats = 2}, .run = [](auto& a) {
         double total = 0;
         each_block(a, [&](std::size_t at, std::size_t k) {
           const std::span u = std::span(a.block).first(k);
           blend_only(a.array(0).subspan(at, k), kBlend, a.array(1).subspan(at, k), u);
           total += sum_abs(u);
         });
         a.result = std::bit_cast<std::uint64_t>(total);
       }});
  rows.push_back(
      {.name = "quantise+keep_level_error", .bytes = 8, .shape = {.floats = 2}, .run = [](auto& a) {
         each_block(a, [&](std::size_t at, std::size_t k) {
           const std::span q = std::span(a.levels).first(k);
           quantise(a.array(0).subspan(at, k), inverse_step(7), 7, q);
           keep_level_error(a.array(0).subspan(at, k), q, 1 / inverse_step(7),
                            a.array(1).subspan(at, k));
         });
       }});
  rows.push_back({.name = "unpack_levels+levels_to_floats/p4",
                  .bytes = 4.5,
                  .shape = {.floats = 1, .bits = 4},
                  .run = [](auto& a) {
                    each_block(a, [&](std::size_t at, std::size_t k) {
                      const std::span q = std::span(a.levels).first(k);
                      unpack_levels(a.lines(0, 4), {a.n_words(), 4}, at / 64, q);
                      levels_to_floats(q, 0.1f, a.array(0).subspan(at, k));
                    });
                  }});
}

void add_vote_sums(std::vector<KernelRow>& rows) {
  rows.push_back({.name = "vote_sums",
                  .bytes = 4.125,
                  .shape = {.bits = 1, .numbers = 1},
                  .run =
                      [](auto& a) {
                        const auto* sums =
                            reinterpret_cast<const std::int32_t*>(a.numbers().data());
                        vote_sums({sums, a.n()}, kHash, a.bits(0), {});
                      },
                  .prepare =
                      [](auto& a) {
                        for (auto& sum : a.numbers()) sum = sum % 5 - 2;
                      }});
}

}  // namespace

std::vector<KernelRow> level_kernel_rows(std::span<const std::size_t> n_rows) {
  std::vector<KernelRow> rows;
  for (const int bits : {2, 4, 8}) add_encoding(rows, bits);
  for (const std::size_t n : n_rows) {
    for (const int bits : {2, 4, 8}) add_votes(rows, bits, n);
  }
  add_around(rows);
  add_vote_sums(rows);
  return rows;
}

}  // namespace pride::app
