// Resizing of images by a triangle filter, in integers: the same bits on every machine.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "train/vision/jpeg.h"

namespace pride::train {

struct Box {
  int left = 0, top = 0, width = 0, height = 0;

  bool operator==(const Box&) const = default;
};

// A part of an image, resized to width x height, of which a window is wanted.
struct Resize {
  Box from = {};
  int width = 0, height = 0;
  Box window = {};
};

// Bilinear interpolation where the image grows; where it shrinks, the triangle is widened by the
// same factor, so that every pixel counts ("antialias"). What lies outside `from` has no influence.
// First along rows, then along columns, with weights of 22 bits and rounding to bytes after each:
// Pillow's method, and so torchvision's. `out` is (window.height, window.width, 3).
// REQUIRES: `from` inside the image, `window` inside the resized image, none of them empty.
void resample(const RgbImage& image, const Resize& how, std::span<std::uint8_t> out);

}  // namespace pride::train
