// Vision transformer for square images: a class token, learned positions, pre-LN blocks.
// SPDX-License-Identifier: Apache-2.0
// Source    Dosovitskiy et al. 2021; parameter names and weight shapes as timm's vision
// transformers.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "models/model.h"

namespace pride::app {

struct VitSize {
  std::int64_t layers = 6, heads = 8, width = 512;
  std::int64_t patch = 4;  // pixels along a side
  std::int64_t image = 32, channels = 3, classes = 10;
  double init_std = 0.02;  // of initial weights, before they are cut at two deviations
};

// The sizes of vit-small, vit-paper (of CIFAR-10 in the Distributed Lion paper), vit-s16 or vit-b16
// (ViT-S/16 and ViT-B/16); image and classes are left as they are above. Throws InvalidArgument,
// naming the task, on another name.
VitSize vit_preset(const std::string& name, std::string_view task);

// Throws InvalidArgument on a size below 1, a width that the heads do not divide, an image that the
// patches do not tile, or an init_std that is not positive and finite.
std::unique_ptr<Model> make_vit(const VitSize& size);

}  // namespace pride::app
