// Charts as SVG, for the page and for files: no script, light and dark by the reader's setting.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "report/charts.h"

namespace pride::app {

// An element of a page with chart_style(). Elements of a series have its colour in data-color, and
// its points in data-at as "x y spread", in the order of its path.
std::string svg_of(const Chart& chart);

// The same as a file, with style and title.
std::string svg_file(const Chart& chart);

// CSS of all charts: c0 to c7 for lines, f0 to f7 for areas.
std::string chart_style();

// Lines of a colour that repeats differ in dashes.
std::string line_class(int color);

// Text for HTML and SVG, in elements and in quoted attributes.
std::string escaped(const std::string& text);

}  // namespace pride::app
