// SPDX-License-Identifier: Apache-2.0
#include "train/vision/view.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "pride/error.h"

namespace pride::train {
namespace {

constexpr double kLeastArea = 0.08;
constexpr double kLeastRatio = 3.0 / 4, kMostRatio = 4.0 / 3;
constexpr int kTries = 10;

constexpr std::array<double, 3> kMean = {0.485, 0.456, 0.406};
constexpr std::array<double, 3> kDeviation = {0.229, 0.224, 0.225};

// Uniform in [low, high).
double uniform(PhiloxStream& bits, double low, double high) {
  return low + (high - low) * static_cast<double>(bits.next_u64() >> 11) * 0x1p-53;
}

// As Python's round: halves to the even neighbour.
int rounded(double value) { return static_cast<int>(std::nearbyint(value)); }

Box centred(int width, int height, int part_width, int part_height) {
  return {(width - part_width) / 2, (height - part_height) / 2, part_width, part_height};
}

using Table = std::array<std::array<float, 256>, 3>;

// normalised value of every byte, per channel
const Table& value_table() {
  static const Table table = [] {
    Table values{};
    for (std::size_t c = 0; c < 3; ++c) {
      for (std::size_t p = 0; p < 256; ++p) {
        const double value = (static_cast<double>(p) / 255 - kMean[c]) / kDeviation[c];
        values[c][p] = static_cast<float>(value);
      }
    }
    return values;
  }();
  return table;
}

void write_view(const RgbImage& image, const Resize& how, bool flip, std::span<float> out) {
  const auto size = static_cast<std::size_t>(how.window.width);
  PRIDE_CHECK(out.size() == 3 * size * size, "a view of ", size, " pixels: room for ", out.size(),
              " floats");
  std::vector<std::uint8_t> bytes(out.size());
  resample(image, how, bytes);
  float* value = out.data();
  for (std::size_t c = 0; c < 3; ++c) {
    const std::array<float, 256>& table = value_table()[c];
    for (std::size_t y = 0; y < size; ++y) {
      const std::uint8_t* row = bytes.data() + 3 * y * size + c;
      for (std::size_t x = 0; x < size; ++x) {
        *value++ = table[row[3 * (flip ? size - 1 - x : x)]];
      }
    }
  }
}

}  // namespace

Box random_crop(int width, int height, PhiloxStream& bits) {
  const double area = static_cast<double>(width) * height;
  for (int i = 0; i < kTries; ++i) {
    const double part = area * uniform(bits, kLeastArea, 1);
    const double ratio = std::exp(uniform(bits, std::log(kLeastRatio), std::log(kMostRatio)));
    const int w = rounded(std::sqrt(part * ratio)), h = rounded(std::sqrt(part / ratio));
    if (w < 1 || h < 1 || w > width || h > height) continue;
    const auto top = bits.next_below(static_cast<std::uint32_t>(height - h + 1));
    const auto left = bits.next_below(static_cast<std::uint32_t>(width - w + 1));
    return {static_cast<int>(left), static_cast<int>(top), w, h};
  }
  // an image of 1 x 1000 pixels has parts of 1 x 1 at least
  const double ratio = static_cast<double>(width) / height;
  if (ratio < kLeastRatio) {
    return centred(width, height, width, std::min(height, rounded(width / kLeastRatio)));
  }
  if (ratio > kMostRatio) {
    return centred(width, height, std::min(width, rounded(height * kMostRatio)), height);
  }
  return {0, 0, width, height};
}

Resize centre_crop(int width, int height, int size) {
  const int side = rounded(size * 256.0 / 224);
  const int shorter = std::min(width, height), longer = std::max(width, height);
  const auto other = static_cast<int>(std::int64_t{side} * longer / shorter);
  Resize how{.from = {0, 0, width, height}};
  how.width = width <= height ? side : other;
  how.height = width <= height ? other : side;
  how.window = {rounded((how.width - size) / 2.0), rounded((how.height - size) / 2.0), size, size};
  return how;
}

void train_view(const RgbImage& image, int size, PhiloxStream bits, std::span<float> out) {
  Resize how{.width = size, .height = size, .window = {0, 0, size, size}};
  how.from = random_crop(image.width, image.height, bits);
  write_view(image, how, bits.next_below(2) == 1, out);
}

void eval_view(const RgbImage& image, int size, std::span<float> out) {
  write_view(image, centre_crop(image.width, image.height, size), false, out);
}

}  // namespace pride::train
