// Charts as PNG.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace pride::app {

inline constexpr int kPngWidth = 1600;  // pixels

// Draws an SVG of svg_file() on white, kPngWidth wide, with the program rsvg-convert. Throws Error
// if there is none, or if it fails.
void write_png(const std::string& svg, const std::string& file);

}  // namespace pride::app
