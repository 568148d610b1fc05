// SPDX-License-Identifier: Apache-2.0
#include "train/clip.h"

#include <array>
#include <cmath>
#include <cstddef>

namespace pride::train {

double norm(std::span<const float> values) {
  // eight running sums: the additions need not wait for each other
  std::array<double, 8> sums{};
  const std::size_t whole = values.size() / sums.size() * sums.size();
  for (std::size_t i = 0; i < whole; i += sums.size()) {
    for (std::size_t k = 0; k < sums.size(); ++k) {
      const double v = values[i + k];
      sums[k] += v * v;
    }
  }
  double total = 0;
  for (const double sum : sums) total += sum;
  for (const float v : values.subspan(whole)) total += static_cast<double>(v) * v;
  return std::sqrt(total);
}

double clip(std::span<float> values, double limit) {
  const double before = norm(values);
  if (std::isfinite(before) && before > limit) {
    const auto scale = static_cast<float>(limit / before);
    for (float& v : values) v *= scale;
  }
  return before;
}

}  // namespace pride::train
