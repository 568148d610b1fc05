// JPEG files as red, green and blue bytes, by libjpeg.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace pride::train {

struct RgbImage {
  int width = 0, height = 0;
  std::vector<std::uint8_t> pixels = {};  // (height, width, 3)
};

// Larger images are refused before anything is allocated for them: a small file can claim any size.
inline constexpr std::int64_t kMostPixels = std::int64_t{1} << 27;

// Baseline and progressive; grey becomes red = green = blue; CMYK and YCCK are taken as Adobe
// writes them (inverted) and become RGB as (255 - C)(255 - K) / 255. The orientation in EXIF is
// ignored, as ImageNet's users do. Throws DataError, naming `name`: not a JPEG (and its type, if
// known), truncated or corrupt, too large. A warning of libjpeg is an error if pixels were lost,
// and ignored otherwise.
RgbImage decode_jpeg(std::span<const std::byte> bytes, const std::string& name,
                     std::int64_t most_pixels = kMostPixels);

// The bytes of a file, read once: it may change afterwards. Throws DataError.
std::vector<std::byte> read_jpeg_bytes(const std::string& name);

// The image of a file.
RgbImage read_jpeg(const std::filesystem::path& file);

}  // namespace pride::train
