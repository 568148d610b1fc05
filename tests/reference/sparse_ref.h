// Scalar oracles of the sparse methods: loops over ranks and coordinates, sorting, no frames.
// SPDX-License-Identifier: Apache-2.0
//
// Oracle of: deep gradient compression (Lin et al. 2017, Algorithms 1 and 4) and gradient dropping
// (Aji & Heafield 2017, Algorithm 1), with the exact threshold. Limits: one tensor at a time; for
// the global threshold, all tensors concatenated.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "reference/methods_ref.h"

namespace pride::reference {

// Indices of the k largest magnitudes, zeros left out, ties to the lower index; ascending.
inline std::vector<std::size_t> largest(const std::vector<float>& v, std::size_t k) {
  std::vector<std::size_t> order(v.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return std::fabs(v[a]) > std::fabs(v[b]); });
  order.resize(std::min(k, v.size()));
  std::erase_if(order, [&](std::size_t i) { return v[i] == 0; });
  std::sort(order.begin(), order.end());
  return order;
}

struct SparseRule {
  bool dgc = false;  // else gradient dropping
  double ratio = 0.04;
  bool masking = true, nesterov = false;
};

// One tensor on N ranks.
class SparseOracle {
 public:
  SparseOracle(SparseRule rule, int world, std::vector<float> x, Hyper h)
      : rule_(rule),
        h_(h),
        x_(std::move(x)),
        u_(static_cast<std::size_t>(world), std::vector<float>(x_.size())),
        v_(u_) {}

  const std::vector<float>& x() const { return x_; }
  const std::vector<float>& u(std::size_t rank) const { return u_[rank]; }
  const std::vector<float>& v(std::size_t rank) const { return v_[rank]; }

  void step(const std::vector<std::vector<float>>& grads, const std::vector<bool>& unused) {
    const auto n = static_cast<double>(x_.size());
    const auto k = static_cast<std::size_t>(std::max(1.0, std::ceil(rule_.ratio * n - 1e-9)));
    std::vector<float> sum(x_.size());
    for (std::size_t r = 0; r < grads.size(); ++r) {
      if (unused[r]) continue;
      accumulate(grads[r], u_[r], v_[r]);
      for (const std::size_t i : largest(v_[r], k)) {
        sum[i] = sum[i] + v_[r][i];
        v_[r][i] = 0;
        if (rule_.masking) u_[r][i] = 0;
      }
    }
    const auto decay = static_cast<float>(1 - h_.lr * h_.weight_decay);
    for (std::size_t i = 0; i < x_.size(); ++i) {
      const float mean = sum[i] / static_cast<float>(grads.size());
      const float kept = x_[i] * decay, change = static_cast<float>(h_.lr) * mean;
      x_[i] = kept - change;
    }
  }

 private:
  void accumulate(const std::vector<float>& g, std::vector<float>& u, std::vector<float>& v) {
    const auto mu = static_cast<float>(h_.beta1);
    for (std::size_t i = 0; i < g.size(); ++i) {
      if (!rule_.dgc) {
        v[i] = v[i] + g[i];
      } else if (rule_.nesterov) {
        const float ahead = u[i] + g[i];
        u[i] = mu * ahead;
        const float sum = v[i] + u[i];
        v[i] = sum + g[i];
      } else {
        const float kept = mu * u[i];
        u[i] = kept + g[i];
        v[i] = v[i] + u[i];
      }
    }
  }

  SparseRule rule_;
  Hyper h_;
  std::vector<float> x_;
  std::vector<std::vector<float>> u_, v_;
};

}  // namespace pride::reference
