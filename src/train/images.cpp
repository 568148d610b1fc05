// SPDX-License-Identifier: Apache-2.0
#include "train/images.h"

#include <ATen/ATen.h>

#include <array>
#include <cmath>
#include <cstring>

#include "pride/random_bits.h"
#include "train/gamma.h"
#include "train/streams.h"
#include "train/vision/view.h"

namespace pride::train {
namespace {

constexpr int kPadding = 4;
constexpr std::array<double, 3> kMean = {0.4914, 0.4822, 0.4465};
constexpr std::array<double, 3> kDeviation = {0.2470, 0.2435, 0.2616};

struct Crop {
  int down = 0, right = 0;  // of the source, against the output
  bool flip = false;
};

void write_image(const ImageSet& set, std::size_t index, const Crop& crop, float* out) {
  static const ByteValues all_values = normalised_bytes(kMean, kDeviation);
  const int height = set.height, width = set.width;
  const std::uint8_t* plane = set.pixels.data() + index * image_floats(set);
  for (std::size_t c = 0; c < 3; ++c, plane += height * width) {
    const std::array<float, 256>& values = all_values[c];
    for (int row = 0; row < height; ++row) {
      for (int column = 0; column < width; ++column) {
        const int y = row + crop.down;
        const int x = (crop.flip ? width - 1 - column : column) + crop.right;
        const bool inside = y >= 0 && y < height && x >= 0 && x < width;
        *out++ = values[inside ? plane[y * width + x] : 0];
      }
    }
  }
}

}  // namespace

std::size_t image_floats(const ImageSet& set) {
  return static_cast<std::size_t>(set.channels) * static_cast<std::size_t>(set.height) *
         static_cast<std::size_t>(set.width);
}

void normalise(const ImageSet& set, std::size_t index, std::span<float> out) {
  write_image(set, index, {}, out.data());
}

void augment(const ImageSet& set, const Draw& draw, std::uint64_t seed, std::span<float> out) {
  PhiloxStream bits(seed, streams::kAugment, draw.sample, draw.epoch);
  Crop crop;
  crop.down = static_cast<int>(bits.next_below(2 * kPadding + 1)) - kPadding;
  crop.right = static_cast<int>(bits.next_below(2 * kPadding + 1)) - kPadding;
  crop.flip = bits.next_below(2) == 1;
  write_image(set, draw.sample, crop, out.data());
}

std::uint64_t image_hash(const ImageSet& train, const ImageSet& test) {
  std::uint64_t hash = 0;
  for (const auto* bytes : {&train.pixels, &train.labels, &test.pixels, &test.labels}) {
    std::size_t i = 0;
    for (; i + 8 <= bytes->size(); i += 8) {
      std::uint64_t word;
      std::memcpy(&word, bytes->data() + i, sizeof word);
      hash = mix64(hash, word);
    }
    for (; i < bytes->size(); ++i) hash = mix64(hash, (*bytes)[i]);
    hash = mix64(hash, bytes->size());
  }
  return hash;
}

void mix_up(double alpha, PhiloxStream bits, Batch& batch) {
  const double a = log_gamma_variate(alpha, bits), b = log_gamma_variate(alpha, bits);
  batch.share = 1 / (1 + std::exp(b - a));
  batch.other = batch.target.flip({0});
  batch.input = batch.input * batch.share + batch.input.flip({0}) * (1 - batch.share);
}

}  // namespace pride::train
