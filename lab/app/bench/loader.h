// Times of reading, decoding and cropping images, and a check that all can be decoded.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "program/bench/fields.h"
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

// Makes training views of `images` images, evenly spread over the training set, on `threads`
// threads, including the caller's. Reads all files once before, so that disk time does not count.
// Throws DataError, naming the file. REQUIRES: threads, images, size >= 1.
LoaderRow bench_loader(const ImageFolder& folder, std::size_t images, int size, int threads);

Fields fields_of(const LoaderRow& row);

// Decodes every image of both splits; returns the error text of each that cannot be decoded.
std::vector<std::string> check_images(const ImageFolder& folder, int threads);

}  // namespace pride::app
