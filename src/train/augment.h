// CIFAR-10 images as floats: normalisation, and the standard crop and flip for training.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "pride/train/sampler.h"
#include "train/data/cifar10.h"

namespace pride::train {

// Floats of one image: channels * height * width.
std::size_t image_floats(const ImageSet& set);

// Channel-wise (pixel / 255 - mean) / deviation with CIFAR-10's training mean and deviation.
// REQUIRES: index < set.size(); three channels; out.size() == image_floats(set).
void normalise(const ImageSet& set, std::size_t index, std::span<float> out);

// The same after a random crop of the image padded with 4 black pixels on each side, and a flip
// left to right with probability 1/2; drawn from (seed, sample, epoch) alone.
void augment(const ImageSet& set, const Draw& draw, std::uint64_t seed, std::span<float> out);

// 64-bit digest of pixels and labels.
std::uint64_t image_hash(const ImageSet& train, const ImageSet& test);

}  // namespace pride::train
