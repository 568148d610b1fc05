// Charts as SVG, for the page and for files: no script; light or dark by the reader's setting.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "program/chart.h"

namespace pride::inline program {

// An SVG element for a page with chart_style(). Elements of a series have its colour in data-color
// and its points in data-at, as "x y spread" in the order of its path.
std::string svg_of(const Chart& chart);

// The same as a file, with style and title.
std::string svg_file(const Chart& chart);

// CSS of all charts: classes c0 to c7 for colours, dash1 and dash2 for lines.
std::string chart_style();

// The CSS classes of a line: colour and dashes. Lines of the same colour have other dashes.
std::string line_class(int color);

// Text for HTML and SVG, in elements and in quoted attributes.
std::string escaped(const std::string& text);

}  // namespace pride::inline program
