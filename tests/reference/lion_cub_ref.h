// Scalar oracle of Lion Cub: loops over ranks and coordinates, float32 in the written order, no
// buckets, no frames, no packing.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reference/hash_bits_ref.h"
#include "reference/levels_ref.h"
#include "reference/scaled_signs_ref.h"

namespace pride::reference {

struct CubRules {
  int bits = 4;
  std::string scale = "l1", granularity = "block";
  bool tie_zero = false, stochastic = false, shared = false, feedback = false;
  float lr = 0.01f, decay = 1, beta1 = 0.9f, beta1c = 0.1f, beta2 = 0.99f, beta2c = 0.01f;
  std::uint64_t seed = 0;
};

// One tensor on N ranks. grads[rank][i].  bits >= 2.
class CubOracle {
 public:
  CubOracle(CubRules rules, int world, Floats x, std::uint64_t flat_offset)
      : rules_(std::move(rules)),
        offset_(flat_offset),
        x_(std::move(x)),
        m_(static_cast<std::size_t>(world), Floats(x_.size())),
        e_(m_) {}

  const Floats& x() const { return x_; }

  void step(const std::vector<Floats>& grads, const std::vector<bool>& unused) {
    const std::size_t n = x_.size();
    std::vector<Floats> u(grads.size(), Floats(n)), c(grads.size());
    for (std::size_t r = 0; r < grads.size(); ++r) {
      if (!unused[r]) blend(grads[r], m_[r], u[r]);
      for (std::size_t i = 0; i < n && rules_.feedback; ++i) u[r][i] = u[r][i] + e_[r][i];
      c[r] = unused[r] ? Floats(n) : references(u[r]);
    }
    if (rules_.shared) share(c);
    std::vector<int> sums(n);
    bool anybody = false;
    for (std::size_t r = 0; r < grads.size(); ++r) {
      if (unused[r]) continue;
      anybody = true;
      for (std::size_t i = 0; i < n; ++i) {
        const int q = quantised(u[r][i], c[r][i], static_cast<int>(r), i);
        sums[i] += q;
        if (rules_.feedback) {
          const float sent = static_cast<float>(q) * step_of(c[r][i]);
          e_[r][i] = u[r][i] - sent;
        }
      }
    }
    for (std::size_t i = 0; i < n; ++i) move(i, sums[i], anybody);
    ++t_;
  }

 private:
  void blend(const Floats& g, Floats& m, Floats& u) const {
    for (std::size_t i = 0; i < g.size(); ++i) {
      const float a = rules_.beta1 * m[i], b = rules_.beta1c * g[i];
      const float p = rules_.beta2 * m[i], q = rules_.beta2c * g[i];
      u[i] = a + b;
      m[i] = p + q;
    }
  }

  // The scope of a coordinate: [begin, end).
  std::pair<std::size_t, std::size_t> scope(std::size_t i) const {
    if (rules_.granularity == "tensor") return {0, x_.size()};
    const std::size_t block = (offset_ + i) / 4096 * 4096;
    return {block < offset_ ? 0 : block - offset_, std::min(x_.size(), block + 4096 - offset_)};
  }

  float reference_of(const Floats& part) const {
    const auto n = static_cast<double>(part.size());
    // sums of 4096 coordinates, in order
    double l0 = 0, l1 = 0, l2 = 0;
    for (std::size_t at = 0; at < part.size(); at += 4096) {
      const auto begin = part.begin() + static_cast<std::ptrdiff_t>(at);
      const std::size_t length = std::min<std::size_t>(4096, part.size() - at);
      const Floats block(begin, begin + static_cast<std::ptrdiff_t>(length));
      l1 += sum_abs(block);
      l2 += sum_squares(block);
    }
    for (const float v : part) l0 += std::log(std::fabs(double{v}) + 1e-12);
    if (rules_.scale == "l0") return l1 > 0 ? static_cast<float>(std::exp(l0 / n)) : 0.0f;
    if (rules_.scale == "l1") return static_cast<float>(l1 / n);
    if (rules_.scale == "l2") return static_cast<float>(std::sqrt(l2 / n));
    float most = 0;
    for (const float v : part) most = std::max(most, std::fabs(v));
    return most;
  }

  // The scale of every coordinate's scope.
  Floats references(const Floats& u) const {
    Floats c(u.size());
    for (std::size_t i = 0; i < u.size();) {
      const auto [begin, end] = scope(i);
      const float of_all = reference_of({u.begin() + static_cast<std::ptrdiff_t>(begin),
                                         u.begin() + static_cast<std::ptrdiff_t>(end)});
      for (; i < end; ++i) c[i] = of_all;
    }
    return c;
  }

  void share(std::vector<Floats>& c) const {
    for (std::size_t i = 0; i < x_.size(); ++i) {
      double sum = 0;
      float most = 0;
      int n = 0;
      for (const Floats& theirs : c) {
        sum += double{theirs[i]};
        n += theirs[i] > 0 ? 1 : 0;
        most = std::max(most, theirs[i]);
      }
      const float mean = n > 0 ? static_cast<float>(sum / n) : 0.0f;
      for (Floats& theirs : c) theirs[i] = rules_.scale == "max" ? most : mean;
    }
  }

  float step_of(float c) const {
    if (c < 0x1p-100f) return 0;
    const bool half = rules_.scale[0] == 'l';
    return (half ? 2.0f * c : c) / static_cast<float>(kernels::largest_level(rules_.bits));
  }

  int quantised(float u, float c, int rank, std::size_t i) const {
    const float step = step_of(c), inv = step == 0 ? 0.0f : 1.0f / step;
    const int s = kernels::largest_level(rules_.bits);
    return rules_.stochastic ? level(u, inv, s, uniform(rules_.seed, t_, rank, offset_ + i))
                             : level(u, inv, s);
  }

  void move(std::size_t i, int sum, bool present) {
    const float kept = x_[i] * rules_.decay;
    int vote = (sum > 0) - (sum < 0);
    if (vote == 0 && !rules_.tie_zero) {
      vote = tie_of(x_[i], rules_.lr, static_cast<std::uint64_t>(t_)) ? 1 : -1;
    }
    x_[i] = !present || vote == 0 ? kept : kept - (vote > 0 ? rules_.lr : -rules_.lr);
  }

  CubRules rules_;
  std::uint64_t offset_;
  Floats x_;
  std::vector<Floats> m_, e_;
  std::int64_t t_ = 0;
};

}  // namespace pride::reference
