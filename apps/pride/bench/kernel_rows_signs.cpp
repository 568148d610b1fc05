// The kernels of methods that send one bit a coordinate: signs, votes, counts, and steps from them.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>

#include "bench/kernel_rows.h"
#include "bench/kernel_scalars.h"
#include "kernels/kernels.h"
#include "kernels/radix.h"
#include "kernels/scaled_signs.h"

namespace pride::app {
namespace {

using namespace kernels;

void add_signs(std::vector<KernelRow>& rows) {
  rows.push_back({.name = "lion_sign_update",
                  .bytes = 12.125,
                  .shape = {.floats = 2, .bits = 1},
                  .run = [](auto& a) {
                    a.result = lion_sign_update(a.array(0), kBlend, kHash, a.array(1), a.bits(0));
                  }});
  rows.push_back({.name = "apply_signs",
                  .bytes = 8.125,
                  .shape = {.floats = 1, .bits = 1},
                  .run = [](auto& a) { apply_signs(a.bits(0), kStep, a.array(0)); }});
  rows.push_back({.name = "apply_ternary",
                  .bytes = 8.25,
                  .shape = {.floats = 1, .bits = 2},
                  .run = [](auto& a) { apply_ternary(a.bits(0), a.bits(1), kStep, a.array(0)); }});
}

void add_votes(std::vector<KernelRow>& rows, std::size_t n) {
  const std::string of = "/" + std::to_string(n);
  const double read = static_cast<double>(n) / 8;
  rows.push_back(
      {.name = "vote" + of, .bytes = read + 1.0 / 8, .shape = {.bits = n + 1}, .run = [n](auto& a) {
         vote(std::span(a.rows).first(n), kHash, a.bits(n));
       }});
  rows.push_back({.name = "vote_ternary" + of,
                  .bytes = read + 2.0 / 8,
                  .shape = {.bits = n + 2},
                  .run = [n](auto& a) {
                    vote_ternary(std::span(a.rows).first(n), a.bits(n), a.bits(n + 1));
                  }});
}

// As in the exchange: planes of a few groups, which stay in the cache, then their numbers. What is
// left over stays in planes.
void count_and_pack(KernelArrays& a, std::size_t n, Radix radix) {
  constexpr std::size_t kPlaneWords = 512;
  const std::size_t n_planes = std::bit_width(n), n_groups = a.n_words() / radix.n_digits;
  const std::size_t some = std::max<std::size_t>(1, kPlaneWords / radix.n_digits);
  std::vector<const std::uint64_t*> part(a.rows.begin(), a.rows.begin() + static_cast<long>(n));
  const auto next = [&](std::size_t words, std::span<std::uint64_t> planes) {
    count(part, words, n_planes, planes);
    for (auto& row : part) row += words;
  };
  a.planes.resize(n_planes * some * radix.n_digits);
  for (std::size_t g = 0; g < n_groups; g += some) {
    const std::size_t groups = std::min(some, n_groups - g), words = groups * radix.n_digits;
    const auto planes = std::span(a.planes).first(n_planes * words);
    next(words, planes);
    pack_digits(planes, n_planes, words, radix, a.numbers().subspan(64 * g, 64 * groups));
  }
  const std::size_t left = a.n_words() - n_groups * radix.n_digits;
  next(left, a.lines(n, n_planes).first(n_planes * left));
}

void add_counts(std::vector<KernelRow>& rows, std::size_t n) {
  const std::string of = "/" + std::to_string(n);
  const std::size_t n_planes = std::bit_width(n);
  const int world = static_cast<int>(n);
  const Radix radix = radix_of(static_cast<std::uint32_t>(n + 1));
  const double read = static_cast<double>(n) / 8, planes = static_cast<double>(n_planes) / 8;
  const double packed = 4 / static_cast<double>(radix.n_digits);
  rows.push_back({.name = "count" + of,
                  .bytes = read + planes,
                  .shape = {.bits = n + n_planes},
                  .run = [=](auto& a) {
                    count(std::span(a.rows).first(n), a.n_words(), n_planes, a.lines(n, n_planes));
                  }});
  rows.push_back({.name = "count+pack_digits" + of,
                  .bytes = read + packed,
                  .shape = {.bits = n + n_planes, .numbers = 1},
                  .run = [=](auto& a) { count_and_pack(a, n, radix); }});
  rows.push_back({.name = "apply_counts" + of,
                  .bytes = 8 + planes,
                  .shape = {.floats = 1, .bits = n_planes},
                  .run = [=](auto& a) {
                    apply_counts(a.lines(0, n_planes), n_planes, a.n_words(), world, world, kStep,
                                 a.array(0));
                  }});
  rows.push_back({.name = "apply_packed_counts" + of,
                  .bytes = 8 + packed,
                  .shape = {.floats = 1, .numbers = 1},
                  .run = [=](auto& a) {
                    apply_packed_counts(a.numbers(), radix, 0, world, world, kStep, a.array(0));
                  }});
  rows.push_back(
      {.name = "max_digit" + of, .bytes = packed, .shape = {.numbers = 1}, .run = [=](auto& a) {
         a.result = max_digit(a.numbers(), radix, 0, a.n_words());
       }});
}

}  // namespace

std::vector<KernelRow> sign_kernel_rows(std::span<const std::size_t> n_rows) {
  std::vector<KernelRow> rows;
  add_signs(rows);
  for (const std::size_t n : n_rows) {
    add_votes(rows, n);
    add_counts(rows, n);
  }
  return rows;
}

}  // namespace pride::app
