// A chart as an SVG file, for a README: no script, light and dark by the reader's own setting.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "report/charts.h"

namespace pride::app {

std::string svg_of(const Chart& chart);

// Text for HTML and SVG, in elements and in quoted attributes.
std::string escaped(const std::string& text);

// A colour of the palette, on light and on dark ground; all pairs of neighbours stay apart for
// colour-blind readers. Colours repeat after kColors; dashes then tell the lines apart.
inline constexpr int kColors = 8;
const char* light_color(int index);
const char* dark_color(int index);

}  // namespace pride::app
