// Scalar oracle of TernGrad: loops over ranks and coordinates, no frames, no bits.
// SPDX-License-Identifier: Apache-2.0
//
// Oracle of: Wen et al. 2017, Algorithm 1, with clipping and shared scales, and SGD with momentum
// on the result. Limits: the random words are those of docs/wire_format.md, from philox4x32 one
// coordinate at a time; the standard deviation is summed in the kernels' sixteen partial sums.
#pragma once

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <vector>

#include "pride/random_bits.h"
#include "reference/methods_ref.h"

namespace pride::reference {

// Uniform in [0, 1) for a flat coordinate.
inline float ternary_uniform(std::uint64_t seed, std::uint64_t step, int rank,
                             std::uint64_t coord) {
  const auto low = [](std::uint64_t v) { return static_cast<std::uint32_t>(v); };
  const auto words = philox4x32({low(coord / 4), low((coord / 4) >> 32), low(step),
                                 static_cast<std::uint32_t>(rank) ^ 0x54470000u},
                                {low(seed), low(seed >> 32)});
  return static_cast<float>(words[coord % 4] >> 8) * 0x1p-24f;
}

// Sum of f(x) over sixteen partial sums, added up as a binary tree.
template <typename F>
double sixteen_sums(const std::vector<float>& x, F&& f) {
  std::array<double, 16> p{};
  for (std::size_t i = 0; i < x.size(); ++i) p[i % 16] += f(static_cast<double>(x[i]));
  const auto four = [&](std::size_t a) { return (p[a] + p[a + 1]) + (p[a + 2] + p[a + 3]); };
  return (four(0) + four(4)) + (four(8) + four(12));
}

// Where gradients are clipped: c standard deviations, or nowhere.
inline float clip_limit(const std::vector<float>& g, double c) {
  const auto n = static_cast<double>(g.size());
  const double mean = sixteen_sums(g, [](double v) { return v; }) / n;
  const double variance = sixteen_sums(g, [](double v) { return v * v; }) / n - mean * mean;
  return c > 0 && variance > 0 ? static_cast<float>(c * std::sqrt(variance)) : FLT_MAX;
}

// One tensor on N ranks.
class TernGradOracle {
 public:
  TernGradOracle(int world, std::vector<float> x, Hyper h, std::uint64_t flat_offset, double clip,
                 std::uint64_t seed)
      : world_(world),
        h_(h),
        offset_(flat_offset),
        clip_(clip),
        seed_(seed),
        x_(std::move(x)),
        m_(x_.size()) {}

  const std::vector<float>& x() const { return x_; }

  void step(const std::vector<std::vector<float>>& grads, const std::vector<bool>& unused) {
    std::vector<float> limits(grads.size());
    float scale = 0;
    bool anybody = false;
    for (std::size_t r = 0; r < grads.size(); ++r) {
      if (unused[r]) continue;
      anybody = true;
      limits[r] = clip_limit(grads[r], clip_);
      for (const float g : grads[r]) scale = std::max(scale, std::min(std::fabs(g), limits[r]));
    }
    const auto lr = static_cast<float>(h_.lr), mu = static_cast<float>(h_.beta1);
    const auto decay = static_cast<float>(1 - h_.lr * h_.weight_decay);
    for (std::size_t i = 0; i < x_.size(); ++i) {
      int sum = 0;
      for (std::size_t r = 0; r < grads.size(); ++r) {
        if (!unused[r]) sum += code(grads[r][i], limits[r], scale, static_cast<int>(r), i);
      }
      const float kept = x_[i] * decay;
      x_[i] = kept;
      if (!anybody) continue;
      const float g = scale * (static_cast<float>(sum) / static_cast<float>(world_));
      const float old = mu * m_[i];
      m_[i] = old + g;
      const float ahead = mu * m_[i];
      const float change = lr * (h_.nesterov ? g + ahead : m_[i]);
      x_[i] = kept - change;
    }
    ++t_;
  }

 private:
  int code(float g, float limit, float scale, int rank, std::size_t i) const {
    const float threshold = ternary_uniform(seed_, t_, rank, offset_ + i) * scale;
    if (!(threshold < std::min(std::fabs(g), limit))) return 0;
    return g > 0 ? 1 : -1;
  }

  int world_;
  Hyper h_;
  std::uint64_t offset_;
  double clip_;
  std::uint64_t seed_;
  std::vector<float> x_, m_;
  std::uint64_t t_ = 0;
};

}  // namespace pride::reference
