// What a model sees of an image: a random crop in training, the centre in evaluation.
// SPDX-License-Identifier: Apache-2.0
// Source    torchvision's RandomResizedCrop, Resize and CenterCrop; Szegedy et al. 2015.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "pride/random_bits.h"
#include "train/vision/resample.h"

namespace pride::train {

// A part of 8 to 100 % of the image's area whose width is 3/4 to 4/3 of its height (uniform in the
// logarithm), anywhere; ten tries for one that fits, then the largest centred part within those
// ratios. REQUIRES: width, height >= 1.
Box random_crop(int width, int height, PhiloxStream& bits);

// The short side becomes size * 256 / 224 (rounded), of which the central size x size is taken.
Resize centre_crop(int width, int height, int size);

// Floats of a view: 3 * size * size.
constexpr std::size_t view_floats(int size) {
  return std::size_t{3} * static_cast<std::size_t>(size) * static_cast<std::size_t>(size);
}

// Writes (3, size, size): (value / 255 - mean) / deviation, ImageNet's of each channel.
// The crop, and a flip left to right with probability 1/2, are drawn from `bits`.
void train_view(const RgbImage& image, int size, PhiloxStream bits, std::span<float> out);
void eval_view(const RgbImage& image, int size, std::span<float> out);

}  // namespace pride::train
