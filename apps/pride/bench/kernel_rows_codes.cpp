// The kernels of error feedback, of ternary codes and of sparse entries.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>

#include "bench/kernel_rows.h"
#include "bench/kernel_scalars.h"
#include "kernels/scaled_signs.h"
#include "kernels/sparse.h"
#include "kernels/ternary.h"

namespace pride::app {
namespace {

using namespace kernels;

constexpr Feedback kFeedback{.keep = 0.9f, .take = 1, .rate = 1e-3f};

// What a worker does before it sends scaled signs: p, its signs, and the sum for the scale.
void feedback_encode(KernelArrays& a) {
  double total = 0;
  for (std::size_t at = 0; at < a.n(); at += KernelArrays::kBlock) {
    const std::size_t k = std::min(KernelArrays::kBlock, a.n() - at);
    const std::span p = std::span(a.block).first(k);
    feedback(a.array(0).subspan(at, k), a.array(1).subspan(at, k), a.array(2).subspan(at, k),
             kFeedback, p);
    pack_signs(p, kHash, a.bits(0).subspan(at / 64, words_for(k)));
    total += sum_abs(p);
  }
  a.result = std::bit_cast<std::uint64_t>(total);
}

void add_feedback(std::vector<KernelRow>& rows) {
  rows.push_back({.name = "feedback+pack_signs+sum_abs",
                  .bytes = 12.125,
                  .shape = {.floats = 3, .bits = 1},
                  .run = feedback_encode});
  rows.push_back({.name = "keep_feedback",
                  .bytes = 20.125,
                  .shape = {.floats = 3, .bits = 1},
                  .run = [](auto& a) {
                    keep_feedback(a.array(0), kFeedback, a.bits(0), 1e-3f, a.array(1), a.array(2));
                  }});
  rows.push_back(
      {.name = "pack_signs", .bytes = 4.125, .shape = {.floats = 1, .bits = 1}, .run = [](auto& a) {
         pack_signs(a.array(0), kHash, a.bits(0));
       }});
  rows.push_back({.name = "sum_abs", .bytes = 4, .shape = {.floats = 1}, .run = [](auto& a) {
                    a.result = std::bit_cast<std::uint64_t>(sum_abs(a.array(0)));
                  }});
  rows.push_back({.name = "keep_remainder",
                  .bytes = 8.125,
                  .shape = {.floats = 2, .bits = 1},
                  .run = [](auto& a) { keep_remainder(a.array(0), a.bits(0), 0.1f, a.array(1)); }});
  rows.push_back({.name = "adam_signs",
                  .bytes = 16.125,
                  .shape = {.floats = 3, .bits = 1},
                  .run =
                      [](auto& a) {
                        const AdamScalars s{.step_size = 1e-3f, .eps = 1e-8f};
                        adam_signs(a.bits(0), 0.01f, s, a.array(0), a.array(1), a.array(2));
                      },
                  .prepare =
                      [](auto& a) {
                        for (float& v : a.array(0)) v = std::abs(v);
                      }});
}

void add_mean_of_signs(std::vector<KernelRow>& rows, std::size_t n) {
  rows.push_back({.name = "mean_of_signs/" + std::to_string(n),
                  .bytes = 8 + static_cast<double>(n) / 8,
                  .shape = {.floats = 2, .bits = n},
                  .run = [n](auto& a) {
                    std::vector<ScaledRow> scaled;
                    for (const std::uint64_t* bits : a.rows) {
                      scaled.push_back({bits, 0.25f + static_cast<float>(scaled.size())});
                    }
                    mean_of_signs(scaled, static_cast<int>(n), a.array(0), a.array(1));
                  }});
}

void add_ternary(std::vector<KernelRow>& rows) {
  rows.push_back(
      {.name = "ternarise", .bytes = 4.25, .shape = {.floats = 1, .bits = 2}, .run = [](auto& a) {
         ternarise(a.array(0), 1.0f, 1.0f, kKey, a.bits(0), a.bits(1));
       }});
  rows.push_back({.name = "sums_to_floats/4 planes",
                  .bytes = 4.5,
                  .shape = {.floats = 1, .bits = 4},
                  .run = [](auto& a) {
                    sums_to_floats(a.lines(0, 4), 4, a.n_words(), 4, 4, 0.1f, a.array(0));
                  }});
}

// Entries of `percent`, as of DGC (0.1) and of graddrop (4).
std::size_t entries(std::size_t n, double percent) {
  return static_cast<std::size_t>(std::ceil(static_cast<double>(n) * percent / 100));
}

void add_sparse(std::vector<KernelRow>& rows) {
  rows.push_back(
      {.name = "correct_momentum", .bytes = 20, .shape = {.floats = 3}, .run = [](auto& a) {
         correct_momentum(a.array(0), 1.0f, 0.9f, false, a.array(1), a.array(2));
       }});
  rows.push_back({.name = "top_k/0.1%", .bytes = 12, .shape = {.floats = 1}, .run = [](auto& a) {
                    const TopK top = top_k(a.array(0), entries(a.n(), 0.1));
                    a.result = top.magnitude | (std::uint64_t{top.n_equal} << 32);
                  }});
  // the choice is made beforehand, and numbers hold it
  const auto choose = [](KernelArrays& a) {
    const TopK top = top_k(a.array(0), entries(a.n(), 4));
    a.numbers()[0] = top.magnitude;
    a.numbers()[1] = static_cast<std::uint32_t>(top.n_equal);
  };
  const auto selected = [](KernelArrays& a) {
    TopK top{a.numbers()[0], a.numbers()[1]};
    a.result = select(a.array(0), top, a.bits(0));
  };
  rows.push_back({.name = "select/4%",
                  .bytes = 4.125,
                  .shape = {.floats = 1, .bits = 1, .numbers = 1},
                  .run = selected,
                  .prepare = choose});
  rows.push_back({.name = "clear_selected/4%",
                  .bytes = 0.125 + 0.04 * 4,
                  .shape = {.floats = 1, .bits = 1, .numbers = 1},
                  .run = [](auto& a) { clear_selected(a.bits(0), a.array(0)); },
                  .prepare =
                      [=](auto& a) {
                        choose(a);
                        selected(a);
                      },
                  .dispatched = false});
}

}  // namespace

std::vector<KernelRow> code_kernel_rows(std::span<const std::size_t> n_rows) {
  std::vector<KernelRow> rows;
  add_feedback(rows);
  for (const std::size_t n : n_rows) add_mean_of_signs(rows, n);
  add_ternary(rows);
  add_sparse(rows);
  return rows;
}

}  // namespace pride::app
