// JPEG files for tests, made by libjpeg: any colours, baseline or progressive.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <jpeglib.h>

namespace pride::app::test {

struct JpegKind {
  int width = 16, height = 16;
  int components = 3;  // 1: grey, 3: RGB, 4: CMYK as Adobe stores it, inverted
  bool progressive = false;
  bool ycck = false;  // of four components
  int quality = 95;
};

// The value of a component at a place.
using Paint = std::function<std::uint8_t(int x, int y, int component)>;

inline std::string make_jpeg(const JpegKind& kind, const Paint& paint) {
  jpeg_compress_struct info = {};
  jpeg_error_mgr errors = {};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &memory, &size);
  info.image_width = static_cast<JDIMENSION>(kind.width);
  info.image_height = static_cast<JDIMENSION>(kind.height);
  info.input_components = kind.components;
  info.in_color_space = kind.components == 1   ? JCS_GRAYSCALE
                        : kind.components == 3 ? JCS_RGB
                                               : JCS_CMYK;
  jpeg_set_defaults(&info);
  if (kind.ycck) jpeg_set_colorspace(&info, JCS_YCCK);
  jpeg_set_quality(&info, kind.quality, TRUE);
  if (kind.progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  std::vector<std::uint8_t> row(static_cast<std::size_t>(kind.width * kind.components));
  for (int y = 0; y < kind.height; ++y) {
    for (int i = 0; i < kind.width * kind.components; ++i) {
      row[static_cast<std::size_t>(i)] = paint(i / kind.components, y, i % kind.components);
    }
    JSAMPROW line = row.data();
    jpeg_write_scanlines(&info, &line, 1);
  }
  jpeg_finish_compress(&info);
  std::string bytes(reinterpret_cast<const char*>(memory), size);
  jpeg_destroy_compress(&info);
  std::free(memory);
  return bytes;
}

// A picture with some of everything: slopes, edges and grain.
inline std::uint8_t landscape(int x, int y, int component) {
  const int grain = (x * 37 + y * 101 + component * 59) * 29 % 31;
  return static_cast<std::uint8_t>((x * 3 + y * (component + 1) + (x / 7 % 2) * 40 + grain) % 256);
}

}  // namespace pride::app::test
