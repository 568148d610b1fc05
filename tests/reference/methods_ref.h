// Scalar oracles of the methods: plain loops over ranks and coordinates, float32 in the order that
// the papers write, no buckets, no frames, no packing.
// SPDX-License-Identifier: Apache-2.0
//
// Oracle of: Distributed Lion (Liu et al. 2024, Algorithm 1), Lion (Chen et al. 2023, Program 1),
// AdamW (Loshchilov & Hutter 2019, Algorithm 2),
// SGD with momentum, Signum (Bernstein et al. 2018, Algorithm 2). Limits: the bits of zeros and
// ties are those of hash_bits_ref.h.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "reference/hash_bits_ref.h"

namespace pride::reference {

struct Hyper {
  double lr = 0.01, beta1 = 0.9, beta2 = 0.99, eps = 1e-8, weight_decay = 0;
  bool nesterov = false;  // of sgdm and terngrad
  bool bf16 = false;      // of the dense methods: gradients and their mean rounded to bfloat16
  int levels = 0;         // the same, to levels of so many bits; 0: none
  bool bf16_momentum = false;
};

// One tensor on N ranks. grads[rank][i]; unused[rank]; flat_offset: where the tensor starts in the
// flat coordinates (hash bits are keyed by them). weights[rank]: of votes; empty: 1.
class Oracle {
 public:
  Oracle(std::string method, int world, std::vector<float> x, Hyper h, std::uint64_t flat_offset,
         bool tie_zero, std::uint64_t seed, std::vector<std::int64_t> weights = {})
      : method_(std::move(method)),
        world_(world),
        h_(h),
        offset_(flat_offset),
        tie_zero_(tie_zero),
        seed_(seed),
        weights_(std::move(weights)),
        x_(std::move(x)),
        m_(static_cast<std::size_t>(world), std::vector<float>(x_.size())),
        v_(x_.size()) {}

  const std::vector<float>& x() const { return x_; }
  const std::vector<float>& m(int rank) const { return m_[static_cast<std::size_t>(rank)]; }

  void step(const std::vector<std::vector<float>>& grads, const std::vector<bool>& unused) {
    if (method_ == "adamw" || method_ == "lion" || method_ == "sgdm")
      dense_step(grads, unused);
    else
      sign_step(grads, unused);
    ++t_;
  }

 private:
  static int sign(float u) { return u > 0 ? 1 : u < 0 ? -1 : 0; }

  std::vector<float> sent(std::vector<float> values) const {
    if (h_.levels != 0) return in_levels(values, h_.levels);
    for (float& value : values) value = h_.bf16 ? rounded(value) : value;
    return values;
  }
  // Multiples of a scale, to nearest, ties to even. The scale of 64 values is the largest magnitude
  // over the largest level, in bfloat16.
  static std::vector<float> in_levels(std::vector<float> values, int bits) {
    const auto largest = static_cast<float>((1 << (bits - 1)) - 1);
    for (std::size_t begin = 0; begin < values.size(); begin += 64) {
      const std::size_t end = std::min(begin + 64, values.size());
      float most = 0;
      for (std::size_t i = begin; i < end; ++i) most = std::max(most, std::abs(values[i]));
      const float scale = most < 0x1p-100f ? 0.0f : rounded(most / largest);
      for (std::size_t i = begin; i < end; ++i) {
        const float level = scale == 0 ? 0.0f : std::nearbyint(values[i] * (1.0f / scale));
        values[i] = std::clamp(level, -largest, largest) * scale;
      }
    }
    return values;
  }
  // to bfloat16 and back: the upper 16 bits, to nearest, ties to even
  float kept(float value) const { return h_.bf16_momentum ? rounded(value) : value; }
  static float rounded(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t high = bits & 0xFFFF0000u, rest = bits & 0x0000FFFFu;
    const bool up = rest > 0x8000u || (rest == 0x8000u && (bits & 0x10000u) != 0);
    return std::bit_cast<float>(high + (up ? 0x10000u : 0u));
  }

  float decay() const { return static_cast<float>(1 - h_.lr * h_.weight_decay); }

  void dense_step(const std::vector<std::vector<float>>& grads, const std::vector<bool>& unused) {
    int present = 0;
    for (const bool a : unused) present += a ? 0 : 1;
    const auto b1 = static_cast<float>(h_.beta1), c1 = static_cast<float>(1 - h_.beta1);
    const auto b2 = static_cast<float>(h_.beta2), c2 = static_cast<float>(1 - h_.beta2);
    const double t = t_ + 1;
    const auto step_size = static_cast<float>(h_.lr / (1 - std::pow(h_.beta1, t)));
    const auto bias2 = static_cast<float>(std::sqrt(1 - std::pow(h_.beta2, t)));
    std::vector<float>& m = m_[0];
    std::vector<float> mean(x_.size());
    bool first = true;
    for (std::size_t r = 0; r < grads.size(); ++r) {
      if (unused[r]) continue;
      const std::vector<float> terms = sent(grads[r]);
      for (std::size_t i = 0; i < x_.size(); ++i) mean[i] = first ? terms[i] : mean[i] + terms[i];
      first = false;
    }
    for (float& sum : mean) sum /= static_cast<float>(world_);
    mean = sent(mean);
    for (std::size_t i = 0; i < x_.size(); ++i) {
      const float g = mean[i];
      const float kept = x_[i] * decay();
      if (present == 0) {
        x_[i] = kept;
      } else if (method_ == "lion") {
        const float u = b1 * m[i] + c1 * g;
        x_[i] = kept - static_cast<float>(h_.lr) * static_cast<float>(sign(u));
        m[i] = this->kept(b2 * m[i] + c2 * g);
      } else if (method_ == "sgdm") {
        m[i] = b1 * m[i] + g;
        x_[i] = kept - static_cast<float>(h_.lr) * (h_.nesterov ? g + b1 * m[i] : m[i]);
      } else {
        m[i] = b1 * m[i] + c1 * g;
        v_[i] = b2 * v_[i] + (c2 * g) * g;
        const float denominator = std::sqrt(v_[i]) / bias2 + static_cast<float>(h_.eps);
        x_[i] = kept - (step_size * m[i]) / denominator;
      }
    }
  }

  void sign_step(const std::vector<std::vector<float>>& grads, const std::vector<bool>& unused) {
    const auto b1 = static_cast<float>(h_.beta1), c1 = static_cast<float>(1 - h_.beta1);
    const auto b2 = static_cast<float>(h_.beta2), c2 = static_cast<float>(1 - h_.beta2);
    const bool signum = method_.starts_with("signum");
    const std::size_t n = x_.size();
    const auto ranks = static_cast<std::size_t>(world_);
    std::vector<std::vector<float>> u(ranks, std::vector<float>(n));
    for (std::size_t r = 0; r < ranks; ++r) {
      if (unused[r]) continue;
      for (std::size_t i = 0; i < n; ++i) {
        if (signum) {
          u[r][i] = b1 * m_[r][i] + c1 * grads[r][i];
          m_[r][i] = kept(u[r][i]);
        } else {
          u[r][i] = b1 * m_[r][i] + c1 * grads[r][i];
          m_[r][i] = kept(b2 * m_[r][i] + c2 * grads[r][i]);
        }
      }
    }
    for (std::size_t i = 0; i < n; ++i) {
      std::int64_t votes = 0, voters = 0, present = 0;
      for (std::size_t r = 0; r < ranks; ++r) {
        const std::int64_t weight = weights_.empty() ? 1 : weights_[r];
        voters += weight;
        if (unused[r]) continue;
        present += weight;
        int s = sign(u[r][i]);
        if (s == 0) s = zero_of(x_[i], static_cast<float>(h_.lr), t_, r) ? 1 : -1;
        votes += weight * s;
      }
      const float kept = x_[i] * decay();
      float delta = 0;
      if (method_.ends_with("-avg")) {
        delta = static_cast<float>(votes) / static_cast<float>(voters);
      } else if (votes != 0) {
        delta = votes > 0 ? 1.0f : -1.0f;
      } else if (present > 0 && !tie_zero_) {
        delta = tie_of(x_[i], static_cast<float>(h_.lr), t_) ? 1.0f : -1.0f;
      }
      x_[i] = delta == 0 ? kept : kept - static_cast<float>(h_.lr) * delta;
    }
  }

  std::string method_;
  int world_;
  Hyper h_;
  std::uint64_t offset_;
  bool tie_zero_;
  std::uint64_t seed_;
  std::vector<std::int64_t> weights_;
  std::vector<float> x_;
  std::vector<std::vector<float>> m_;
  std::vector<float> v_;
  std::uint64_t t_ = 0;
};

}  // namespace pride::reference
