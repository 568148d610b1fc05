// SharedScales: floats, one for each tensor or row, made equal on all ranks before encode. A
// component of TernGrad and Lion Cub.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "methods/method.h"

namespace pride::methods {

class SharedScales {
 public:
  // kLargest: the largest scale of the ranks; kMean: the mean of the scales above 0, added in rank
  // order in double.
  enum class Rule { kLargest, kMean };
  SharedScales(Rule rule, std::size_t n) : rule_(rule), n_(n) {}

  static constexpr int kPart = 100;  // id of its part
  Part part() const;

  // This rank's scales, which are n, finite and not negative; and the common ones.
  void write(std::span<const float> scales, Wire& wire) const;
  void serve(const VoterFrames& voters, Reply& reply) const;
  void read(const Wire& wire, std::span<float> scales) const;

 private:
  Rule rule_;
  std::size_t n_;
};

}  // namespace pride::methods
