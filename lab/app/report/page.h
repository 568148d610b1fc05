// The report as one self-contained HTML page, with style, script and numbers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "report/charts.h"

namespace pride::app {

struct PageFacts {
  std::string title;
  std::string program;  // "pride 0.1.0 (abc1234)"
};

std::string page_of(const PageFacts& facts, const Loaded& loaded,
                    const std::vector<Section>& sections, const Look& look = {});

// Texts of files that are compiled into the program and embedded in every page.
extern const char* const kPageJs;
extern const char* const kPageCss;

}  // namespace pride::app
