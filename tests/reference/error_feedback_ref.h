// Scalar oracle of signsgd-ef and onebit-adam: plain loops over ranks and coordinates, float32 in
// the order that the papers write, no buckets, no shards, no frames, no packing.
// SPDX-License-Identifier: Apache-2.0
//
// Oracle of: Zheng et al. 2019, dist-EF-blockSGD (for N = 1, Karimireddy et al. 2019, Algorithm 1),
// and Tang et al. 2021, Algorithm 1. Limits: the bits of zeros are those of hash_bits_ref.h, the
// blocks of 4096 flat coordinates those of docs/wire_format.md; sums for the scales run over
// sixteen partial sums.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "reference/hash_bits_ref.h"
#include "reference/methods_ref.h"

namespace pride::reference {

// One tensor on N ranks.
class ErrorFeedbackOracle {
 public:
  using Floats = std::vector<float>;
  enum class Kind { kSignSgd, kOneBitAdam };

  ErrorFeedbackOracle(Kind kind, int world, Floats x, Hyper h, std::uint64_t flat_offset,
                      std::uint64_t seed, std::int64_t freeze_steps = 0)
      : kind_(kind),
        world_(static_cast<std::size_t>(world)),
        h_(h),
        offset_(flat_offset),
        seed_(seed),
        freeze_(freeze_steps),
        x_(std::move(x)),
        m_(world_, Floats(x_.size())),
        e_(world_, Floats(x_.size())),
        server_e_(x_.size()),
        v_(x_.size()) {}

  const Floats& x() const { return x_; }
  const Floats& m(std::size_t rank) const { return m_[rank]; }
  const Floats& error(std::size_t rank) const { return e_[rank]; }
  const Floats& server_error() const { return server_e_; }

  void step(const std::vector<Floats>& grads, const std::vector<bool>& unused) {
    const bool unused_by_all = std::find(unused.begin(), unused.end(), false) == unused.end();
    const auto decay = static_cast<float>(1 - h_.lr * h_.weight_decay);
    if (unused_by_all) {
      for (float& value : x_) value = value * decay;
    } else if (kind_ == Kind::kOneBitAdam && t_ < freeze_) {
      dense_step(grads, unused, decay);
    } else {
      compressed_step(grads, unused, decay);
    }
    ++t_;
  }

 private:
  void dense_step(const std::vector<Floats>& grads, const std::vector<bool>& unused, float decay) {
    const auto b1 = static_cast<float>(h_.beta1), c1 = static_cast<float>(1 - h_.beta1);
    const auto b2 = static_cast<float>(h_.beta2), c2 = static_cast<float>(1 - h_.beta2);
    const auto bias2 = static_cast<float>(std::sqrt(1 - std::pow(h_.beta2, t_ + 1)));
    for (std::size_t i = 0; i < x_.size(); ++i) {
      float sum = 0;
      bool first = true;
      for (std::size_t r = 0; r < world_; ++r) {
        if (unused[r]) continue;
        sum = first ? grads[r][i] : sum + grads[r][i];
        first = false;
      }
      const float g = sum / static_cast<float>(world_);
      const float kept = b1 * m_[0][i], fresh = c1 * g;
      for (Floats& m : m_) m[i] = kept + fresh;
      const float kept2 = b2 * v_[i], scaled = c2 * g, fresh2 = scaled * g;
      v_[i] = kept2 + fresh2;
      x_[i] = x_[i] * decay - adam_change(m_[0][i], v_[i], bias2);
    }
  }

  float adam_change(float m, float v, float bias2) const {
    const auto step_size = static_cast<float>(h_.lr / (1 - std::pow(h_.beta1, t_ + 1)));
    const float root = std::sqrt(v) / bias2, below = root + static_cast<float>(h_.eps);
    const float above = step_size * m;
    return above / below;
  }

  void compressed_step(const std::vector<Floats>& grads, const std::vector<bool>& unused,
                       float decay) {
    const std::size_t n = x_.size();
    const auto b1 = static_cast<float>(h_.beta1), c1 = static_cast<float>(1 - h_.beta1);
    const auto lr = static_cast<float>(h_.lr);
    std::vector<Floats> sent;
    for (std::size_t r = 0; r < world_; ++r) {
      Floats p(n);
      for (std::size_t i = 0; i < n; ++i) {
        const float g = unused[r] ? 0 : grads[r][i];
        const float kept = b1 * m_[r][i];
        const float fresh = kind_ == Kind::kSignSgd ? g : c1 * g;
        m_[r][i] = kept + fresh;
        const float scaled = kind_ == Kind::kSignSgd ? lr * m_[r][i] : m_[r][i];
        p[i] = scaled + e_[r][i];
      }
      sent.push_back(
          compress(p, [&](std::uint64_t at) { return zero_bit(seed_, step_number(), r, at); }));
      for (std::size_t i = 0; i < n; ++i) e_[r][i] = p[i] - sent[r][i];
    }
    Floats pbar(n);
    for (std::size_t i = 0; i < n; ++i) {
      float sum = sent[0][i];
      for (std::size_t r = 1; r < world_; ++r) sum = sum + sent[r][i];
      const float mean = sum / static_cast<float>(world_);
      pbar[i] = mean + server_e_[i];
    }
    const Floats delta =
        compress(pbar, [&](std::uint64_t at) { return tie_bit(seed_, step_number(), at); });
    for (std::size_t i = 0; i < n; ++i) server_e_[i] = pbar[i] - delta[i];
    move(delta, decay);
  }

  void move(const Floats& delta, float decay) {
    const auto bias2 =
        static_cast<float>(std::sqrt(1 - std::pow(h_.beta2, static_cast<double>(freeze_))));
    for (std::size_t i = 0; i < x_.size(); ++i) {
      const float decayed = x_[i] * decay;
      if (kind_ == Kind::kSignSgd) {
        x_[i] = decayed - delta[i];
        continue;
      }
      for (Floats& m : m_) m[i] = delta[i];
      x_[i] = v_[i] == 0 ? decayed : decayed - adam_change(delta[i], v_[i], bias2);
    }
  }

  // scale * sign(p), block by block of the flat coordinates; bit_of(coordinate) where p is 0.
  template <typename BitOf>
  Floats compress(const Floats& p, const BitOf& bit_of) const {
    Floats out(p.size());
    for (std::size_t begin = 0; begin < p.size();) {
      const std::size_t end =
          std::min<std::size_t>(p.size(), ((offset_ + begin) / 4096 + 1) * 4096 - offset_);
      const float scale = scale_of({p.begin() + static_cast<std::ptrdiff_t>(begin),
                                    p.begin() + static_cast<std::ptrdiff_t>(end)});
      for (std::size_t i = begin; i < end; ++i) {
        out[i] = p[i] > 0 || (p[i] == 0 && bit_of(offset_ + i)) ? scale : -scale;
      }
      begin = end;
    }
    return out;
  }

  float scale_of(const Floats& p) const {
    std::array<double, 16> part{};
    const bool mean_abs = kind_ == Kind::kSignSgd;
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double value = p[i], square = value * value;
      part[i % 16] = part[i % 16] + (mean_abs ? std::fabs(value) : square);
    }
    const auto four = [&](std::size_t a) {
      return (part[a] + part[a + 1]) + (part[a + 2] + part[a + 3]);
    };
    const double sum = (four(0) + four(4)) + (four(8) + four(12));
    const double mean = sum / static_cast<double>(p.size());
    return static_cast<float>(mean_abs ? mean : std::sqrt(mean));
  }

  std::uint64_t step_number() const { return static_cast<std::uint64_t>(t_); }

  Kind kind_;
  std::size_t world_;
  Hyper h_;
  std::uint64_t offset_, seed_;
  std::int64_t freeze_;
  Floats x_;
  std::vector<Floats> m_, e_;
  Floats server_e_, v_;
  std::int64_t t_ = 0;
};

}  // namespace pride::reference
