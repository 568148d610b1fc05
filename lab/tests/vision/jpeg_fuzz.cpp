// A JPEG file, honest ones made by libjpeg with some bytes changed, or any bytes at all. The reader
// refuses it by its name, or the picture has the size that it says.
// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "fuzz_input.h"
#include "pride/error.h"
#include "train/vision/jpeg.h"
#include "vision/jpeg_files.h"

namespace pride::fuzz {
namespace {

constexpr std::int64_t kMostPixels = 1 << 20;

// grey, RGB, CMYK and YCCK, each baseline and progressive
std::string honest(std::size_t kind) {
  static const auto all = [] {
    std::vector<std::string> files;
    for (const bool progressive : {false, true}) {
      for (const int components : {1, 3, 4, 5}) {
        files.push_back(app::test::make_jpeg({.width = 20,
                                              .height = 18,
                                              .components = std::min(components, 4),
                                              .progressive = progressive,
                                              .ycck = components == 5},
                                             app::test::landscape));
      }
    }
    return files;
  }();
  return all[kind % all.size()];
}

std::string file_of(Input input) {
  const auto kind = input.number<std::uint8_t>();
  if (kind == 255) {
    const auto rest = input.rest();
    return {reinterpret_cast<const char*>(rest.data()), rest.size()};
  }
  std::string bytes = honest(kind);
  while (!input.empty()) {
    const std::size_t at = input.below(bytes.size());
    bytes[at] = input.number<char>();
  }
  return bytes;
}

void one_input(Input input) {
  const std::string bytes = file_of(input);
  try {
    const train::RgbImage image =
        train::decode_jpeg(std::as_bytes(std::span(bytes)), "x.jpg", kMostPixels);
    const auto n = static_cast<std::int64_t>(image.width) * image.height;
    must(n >= 1 && n <= kMostPixels, "a size that was to be refused");
    must(static_cast<std::int64_t>(image.pixels.size()) == 3 * n, "pixels do not fit the size");
  } catch (const DataError& e) {
    must(std::string(e.what()).starts_with("x.jpg: "), "the error does not name the file");
  }
}

}  // namespace
}  // namespace pride::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  pride::fuzz::one_input({data, size});
  return 0;
}
