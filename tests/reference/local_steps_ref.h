// Scalar oracle of local steps: plain loops over ranks and coordinates, without buckets or frames.
// SPDX-License-Identifier: Apache-2.0
//
// Oracle of: McMahan et al. 2017, Algorithm 1, with an outer method (Reddi et al. 2021, Algorithm
// 1). The local rules are written here; the outer step is that of methods_ref.h for the drifts.
// With a phase and a delay: Douillard et al. 2025, arXiv:2501.18512, Algorithm 2, where what a
// worker has drifted since it sent is kept.
// Limits: those of methods_ref.h.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "reference/methods_ref.h"

namespace pride::reference {

struct LocalHyper {
  std::string rule = "sgdm";  // "lion", "adamw" or "sgdm"
  std::int64_t h = 1;
  std::int64_t phase = -1;  // of its exchanges, in the h steps; -1: the last
  std::int64_t delay = 0;   // steps from an exchange to the use of its result
  Hyper local, outer;       // outer.lr: as the option outer_lr
  bool signs = true;        // drifts over the learning rate, and an outer rate of lr outer_lr
};

// One tensor on N ranks, as Oracle.
class LocalOracle {
 public:
  // `outer`: "dlion-vote", "lion" or "sgdm".
  LocalOracle(const std::string& outer, int world, const std::vector<float>& x, LocalHyper hyper,
              std::uint64_t flat_offset, std::uint64_t seed)
      : h_(std::move(hyper)),
        outer_(outer, world, x, outer_of(h_), flat_offset, false, seed),
        ranks_(static_cast<std::size_t>(world)) {
    for (Rank& rank : ranks_) rank.y = rank.sent = rank.m = rank.v = std::vector<float>(x.size());
    if (h_.phase < 0) h_.phase = h_.h - 1;
  }

  const std::vector<float>& x() const { return outer_.x(); }

  // x + y of a rank; with an exchange on its way x_before + y_sent + y.
  std::vector<float> local(int rank) const {
    const Rank& r = ranks_[static_cast<std::size_t>(rank)];
    std::vector<float> sum = away() ? before_ : outer_.x();
    for (std::size_t i = 0; i < sum.size(); ++i) {
      if (away()) sum[i] += r.sent[i];
      sum[i] += r.y[i];
    }
    return sum;
  }

  void step(const std::vector<std::vector<float>>& grads, const std::vector<bool>& unused) {
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (!unused[r]) take_step(ranks_[r], grads[r]);
    }
    if (t_++ % h_.h != h_.phase) return;
    sent_at_ = t_;
    before_ = outer_.x();
    std::vector<std::vector<float>> drifts;
    std::vector<bool> idle;
    const float factor = h_.signs ? -1 / static_cast<float>(h_.local.lr) : -1.0F;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      bool moved = false;
      auto& d = drifts.emplace_back();
      ranks_[r].sent = ranks_[r].y;
      for (float& y : ranks_[r].y) {
        moved = moved || y != 0;
        d.push_back(y * factor);
        y = 0;
      }
      idle.push_back(unused[r] && !moved);
    }
    outer_.step(drifts, idle);
  }

 private:
  struct Rank {
    std::vector<float> y, sent, m, v;
  };

  bool away() const { return sent_at_ > 0 && t_ < sent_at_ + h_.delay; }

  static Hyper outer_of(const LocalHyper& h) {
    Hyper outer = h.outer;
    const double lr = static_cast<float>(h.local.lr), wd = static_cast<float>(h.local.weight_decay);
    if (h.signs) {
      outer.lr = h.outer.lr * lr;
      outer.weight_decay = wd;
    } else {
      const double decay = static_cast<float>(1 - h.local.lr * h.local.weight_decay);
      outer.weight_decay = (1 - std::pow(decay, static_cast<double>(h.h))) / outer.lr;
    }
    return outer;
  }

  void take_step(Rank& rank, const std::vector<float>& grad) const {
    const Hyper& s = h_.local;
    const auto lr = static_cast<float>(s.lr);
    const auto b1 = static_cast<float>(s.beta1), c1 = static_cast<float>(1 - s.beta1);
    const auto b2 = static_cast<float>(s.beta2), c2 = static_cast<float>(1 - s.beta2);
    const double t = static_cast<double>(t_ + 1);
    const auto size = static_cast<float>(s.lr / (1 - std::pow(s.beta1, t)));
    const auto bias2 = static_cast<float>(std::sqrt(1 - std::pow(s.beta2, t)));
    for (std::size_t i = 0; i < grad.size(); ++i) {
      float &y = rank.y[i], &m = rank.m[i], &v = rank.v[i];
      const float g = grad[i];
      if (h_.rule == "lion") {
        const float u = b1 * m + c1 * g;
        m = b2 * m + c2 * g;
        y = y - lr * (u > 0 ? 1.0F : u < 0 ? -1.0F : 0.0F);
      } else if (h_.rule == "adamw") {
        m = b1 * m + c1 * g;
        v = b2 * v + (c2 * g) * g;
        y = y - (size * m) / (std::sqrt(v) / bias2 + static_cast<float>(s.eps));
      } else {
        m = b1 * m + g;
        y = y - lr * m;
      }
    }
  }

  LocalHyper h_;
  Oracle outer_;
  std::vector<Rank> ranks_;
  std::vector<float> before_;
  std::int64_t t_ = 0, sent_at_ = 0;
};

}  // namespace pride::reference
