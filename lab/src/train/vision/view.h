// A model's view of an image: a random crop in training, the centre in evaluation, resized by a
// triangle filter in integers: the same bits on every machine.
// SPDX-License-Identifier: Apache-2.0
// Source    torchvision's RandomResizedCrop, Resize and CenterCrop; Szegedy et al. 2015.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "pride/random_bits.h"
#include "train/vision/jpeg.h"

namespace pride::train {

struct Box {
  int left = 0, top = 0, width = 0, height = 0;

  bool operator==(const Box&) const = default;
};

// A window of an image's part, resized to width x height.
struct Resize {
  Box from = {};
  int width = 0, height = 0;
  Box window = {};
};

// Bilinear interpolation where the image grows; where it shrinks, the triangle is widened by the
// same factor, so that every pixel counts ("antialias"). Pixels outside `from` have no influence.
// First along rows, then along columns, with weights of 22 bits and rounding to bytes after each:
// Pillow's method, and so torchvision's. `out` is (window.height, window.width, 3).
// REQUIRES: `from` inside the image, `window` inside the resized image, none of them empty.
void resample(const RgbImage& image, const Resize& how, std::span<std::uint8_t> out);

// A part of 8 to 100 % of the image's area whose width is 3/4 to 4/3 of its height (uniform in the
// logarithm), anywhere; ten tries for one that fits, then the largest centred part within those
// ratios. REQUIRES: width, height >= 1.
Box random_crop(int width, int height, PhiloxStream& bits);

// The short side becomes size * 256 / 224 (rounded), of which the central size x size is taken.
Resize centre_crop(int width, int height, int size);

// (value / 255 - mean) / deviation of every byte value, by channel.
using ByteValues = std::array<std::array<float, 256>, 3>;
ByteValues normalised_bytes(const std::array<double, 3>& mean,
                            const std::array<double, 3>& deviation);

// Floats of a view: 3 * size * size.
constexpr std::size_t view_floats(int size) {
  return std::size_t{3} * static_cast<std::size_t>(size) * static_cast<std::size_t>(size);
}

// Writes (3, size, size): (value / 255 - mean) / deviation, ImageNet's of each channel.
// The crop, and a flip left to right with probability 1/2, are drawn from `bits`.
void train_view(const RgbImage& image, int size, PhiloxStream bits, std::span<float> out);
void eval_view(const RgbImage& image, int size, std::span<float> out);

}  // namespace pride::train
