// Times of reading, decoding and cropping images, and a check that all can be decoded.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "train/vision/image_folder.h"
#include "train_names.h"

namespace pride::app {

struct LoaderRow {
  int threads = 0;
  std::size_t images = 0;
  double seconds = 0;
  double decode_ms = 0, view_ms = 0;  // means of an image, on one thread
  std::uint64_t bytes = 0;            // of the files
};

// Training views of `images` images of the training set, evenly spread over it, by this many
// threads, the caller's among them. All files are read once before, so that the disk does not
// count. Throws DataError, naming the file. REQUIRES: threads, images, size >= 1.
LoaderRow bench_loader(const ImageFolder& folder, std::size_t images, int size, int threads);

// Decodes every image of both splits; returns an error's text for each that cannot be.
std::vector<std::string> check_images(const ImageFolder& folder, int threads);

}  // namespace pride::app
