// Vision transformer for square images: a class token, learned positions, pre-LN blocks.
// SPDX-License-Identifier: Apache-2.0
// Source    Dosovitskiy et al. 2021; parameter names and weight shapes as timm's vision
// transformers.
#pragma once

#include <memory>

#include "pride/train/model.h"

namespace pride::train {

struct VitSize {
  std::int64_t layers = 6, heads = 8, width = 512;
  std::int64_t patch = 4;  // pixels along a side
  std::int64_t image = 32, channels = 3, classes = 10;
  double init_std = 0.02;  // of initial weights, before they are cut at two deviations
};

// Throws InvalidArgument on a size below 1, a width that the heads do not divide, an image that the
// patches do not tile, or an init_std that is not positive and finite.
std::unique_ptr<Model> make_vit(const VitSize& size);

}  // namespace pride::train
