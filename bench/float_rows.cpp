// Rows of the kernels that work on floats.
// SPDX-License-Identifier: Apache-2.0
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "kernel_rows.h"
#include "kernels/log2.h"
#include "kernels/scaled_signs.h"
#include "kernels/sparse.h"
#include "kernels/stochastic_signs.h"
#include "kernels/ternary.h"

namespace pride::bench {

void add_float_rows(std::size_t n) {
  const auto copy = [](const Arrays& a) {
    return [&] { std::memcpy(a.array(1).data(), a.array(0).data(), a.array(0).size_bytes()); };
  };
  add("memcpy", 2, 8, n, copy);
  add("lion_sign_update", 2, 12.125, n, [](const Arrays& a) {
    return [&] { lion_sign_update(a.array(0), kBlend, kHash, a.array(1), a.bits(0)); };
  });
  add("apply_signs", 1, 8.125, n,
      [](const Arrays& a) { return [&] { apply_signs(a.bits(0), kStep, a.array(0)); }; });
  add("apply_ternary", 1, 8.25, n, [](const Arrays& a) {
    return [&] { apply_ternary(a.bits(0), a.bits(1), kStep, a.array(0)); };
  });
  add("apply_counts_3_planes", 1, 8.375, n, [](const Arrays& a) {
    const auto planes = a.words.as<const std::uint64_t>();
    return [&a, planes] { apply_counts(planes, 3, a.bits(0).size(), 4, 4, kStep, a.array(0)); };
  });
  add("apply_decay", 1, 8, n,
      [](const Arrays& a) { return [&] { apply_decay(0.9999f, a.array(0)); }; });
  add("scale", 1, 8, n, [](const Arrays& a) { return [&] { scale(0.9999f, a.array(0)); }; });
  add("sgd_momentum", 3, 20, n, [](const Arrays& a) {
    return [&] { sgd_momentum(a.array(0), 0.9f, false, kStep, a.array(1), a.array(2)); };
  });
  add("ternarise", 1, 4.25, n, [](const Arrays& a) {
    return [&] {
      ternarise(a.array(0), 1.0f, 1.0f, {.seed = 7, .step = 3, .rank = 1}, a.bits(0), a.bits(1));
    };
  });
  add("stochastic_signs", 1, 4.125, n, [](const Arrays& a) {
    return
        [&] { stochastic_signs(a.array(0), 1.0f, {.seed = 7, .step = 3, .rank = 1}, a.bits(0)); };
  });
  add("draw_planes_3_planes", 1, 0.5, n, [](const Arrays& a) {
    const auto planes = a.words.as<const std::uint64_t>();
    return [&a, planes] {
      draw_planes({planes, 3, a.bits(0).size()}, 4, {.seed = 7, .step = 3}, a.bits(3));
    };
  });
  add("sums_to_floats_4_planes", 1, 4.5, n, [](const Arrays& a) {
    const auto planes = a.words.as<const std::uint64_t>();
    return [&a, planes] { sums_to_floats(planes, 4, a.bits(0).size(), 4, 4, 0.1f, a.array(0)); };
  });
  add("correct_momentum", 3, 20, n, [](const Arrays& a) {
    return [&] { correct_momentum(a.array(0), 1.0f, 0.9f, false, a.array(1), a.array(2)); };
  });
  add("top_k_4_percent", 1, 12, n, [n](const Arrays& a) {
    return [&, n] { benchmark::DoNotOptimize(top_k(a.array(0), n / 25)); };
  });
  add("select_4_percent", 1, 4.125, n, [n](const Arrays& a) {
    const TopK top = top_k(a.array(0), n / 25);
    return [&a, top] {
      TopK left = top;
      benchmark::DoNotOptimize(select(a.array(0), left, a.bits(0)));
    };
  });
  add("dense_lion", 3, 20, n, [](const Arrays& a) {
    return [&] { dense_lion(a.array(0), kBlend, kStep, a.array(1), a.array(2)); };
  });
  add("adamw", 4, 28, n, [](const Arrays& a) {
    const AdamScalars s{.beta1 = 0.9f,
                        .one_minus_beta1 = 0.1f,
                        .beta2 = 0.999f,
                        .one_minus_beta2 = 0.001f,
                        .step_size = 1e-3f,
                        .eps = 1e-8f};
    std::ranges::fill(a.array(2), 1e-4f);  // v: never negative
    return [&a, s] { adamw(a.array(0), s, a.array(1), a.array(2), a.array(3)); };
  });
  add("mean_rows_4", 4, 20, n, [](const Arrays& a) {
    return [&] {
      const float* rows[] = {a.array(0).data(), a.array(1).data(), a.array(2).data(),
                             a.array(3).data()};
      mean_rows(rows, 4, a.array(0));
    };
  });
  add("sum_rows_4", 4, 20, n, [](const Arrays& a) {
    std::ranges::fill(a.array(0), 0.0f);
    return [&] {
      const float* rows[] = {a.array(1).data(), a.array(1).data(), a.array(2).data(),
                             a.array(3).data()};
      sum_rows(rows, a.array(0));
    };
  });
  add("first_non_finite", 1, 4, n, [](const Arrays& a) {
    return [&] { benchmark::DoNotOptimize(first_non_finite(a.array(0))); };
  });
  add("sum_squares", 1, 4, n,
      [](const Arrays& a) { return [&] { benchmark::DoNotOptimize(sum_squares(a.array(0))); }; });
}

// The kernels of error feedback.
void add_feedback_rows(std::size_t n) {
  const Feedback f{.keep = 0.9f, .take = 1, .rate = 1e-3f};
  // what a worker does before it sends: p, its signs and the sum for the scale
  add("feedback_encode", 3, 12.125, n, [=](const Arrays& a) {
    return [&a, f] {
      static float p[kBlock];
      each_block(a.n_, [&](std::size_t at, std::size_t k) {
        const std::span<float> part(p, k);
        feedback(a.array(0).subspan(at, k), a.array(1).subspan(at, k), a.array(2).subspan(at, k), f,
                 part);
        pack_signs(part, kHash, a.bits(0).subspan(at / 64, words_for(k)));
        benchmark::DoNotOptimize(sum_abs(part));
      });
    };
  });
  add("keep_feedback", 3, 20.125, n, [=](const Arrays& a) {
    return [&a, f] { keep_feedback(a.array(0), f, a.bits(0), 1e-3f, a.array(1), a.array(2)); };
  });
  add("keep_remainder", 2, 8.125, n, [](const Arrays& a) {
    return [&] { keep_remainder(a.array(0), a.bits(0), 0.1f, a.array(1)); };
  });
  add("pack_signs", 1, 4.125, n,
      [](const Arrays& a) { return [&] { pack_signs(a.array(0), kHash, a.bits(0)); }; });
  add("sum_abs", 1, 4, n,
      [](const Arrays& a) { return [&] { benchmark::DoNotOptimize(sum_abs(a.array(0))); }; });
  add("sum_log2", 1, 4, n,
      [](const Arrays& a) { return [&] { benchmark::DoNotOptimize(sum_log2(a.array(0))); }; });
  add("mean_of_signs_4", 2, 8.5, n, [](const Arrays& a) {
    return [&] {
      std::vector<ScaledRow> rows;
      for (std::size_t r = 0; r < 4; ++r) rows.push_back({a.bits(r).data(), 0.5f});
      mean_of_signs(rows, 4, a.array(0), a.array(1));
    };
  });
  add("adam_signs", 3, 16.125, n, [](const Arrays& a) {
    const AdamScalars s{.step_size = 1e-3f, .eps = 1e-8f};
    std::ranges::fill(a.array(0), 1e-4f);  // v: never negative
    return [&a, s] { adam_signs(a.bits(0), 0.01f, s, a.array(0), a.array(1), a.array(2)); };
  });
}

}  // namespace pride::bench
