// SPDX-License-Identifier: Apache-2.0
#include "train/models/init.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "pride/random_bits.h"
#include "train/streams.h"

namespace pride::train {
namespace {

constexpr double kTruncation = 2;  // deviations

// Standard normal values, two per pair of uniform ones.
class NormalStream {
 public:
  explicit NormalStream(PhiloxStream bits) : bits_(bits) {}

  double next() {
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    // u1 lies in (0, 1], so its logarithm is finite
    const double u1 = static_cast<double>((bits_.next_u64() >> 11) + 1) * 0x1p-53;
    const double u2 = static_cast<double>(bits_.next_u64() >> 11) * 0x1p-53;
    const double radius = std::sqrt(-2 * std::log(u1));
    const double angle = 2 * std::numbers::pi * u2;
    spare_ = radius * std::sin(angle);
    has_spare_ = true;
    return radius * std::cos(angle);
  }

 private:
  PhiloxStream bits_;
  double spare_ = 0;
  bool has_spare_ = false;
};

}  // namespace

std::uint64_t name_hash(std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

void fill_initial(std::uint64_t seed, std::string_view name, Init init, std::span<float> values) {
  if (init.kind == Init::Kind::kConstant) {
    std::ranges::fill(values, static_cast<float>(init.value));
    return;
  }
  // the stream's key takes 48 bits of the hash
  NormalStream normal(PhiloxStream(seed, streams::kInit, name_hash(name) >> 16));
  const bool truncated = init.kind == Init::Kind::kTruncatedNormal;
  for (float& value : values) {
    double z = normal.next();
    while (truncated && std::abs(z) > kTruncation) z = normal.next();
    value = static_cast<float>(init.value * z);
  }
}

}  // namespace pride::train
