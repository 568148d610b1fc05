// SPDX-License-Identifier: Apache-2.0
#include "method_options.h"

#include "pride/error.h"

namespace pride::app {

std::map<std::string, std::string> parse_method_options(const std::vector<std::string>& texts) {
  std::map<std::string, std::string> parsed;
  for (const std::string& text : texts) {
    const std::size_t equals = text.find('=');
    PRIDE_CHECK(equals != std::string::npos && equals > 0, "--method-opt ", text,
                ": must be key=value");
    const bool is_new = parsed.emplace(text.substr(0, equals), text.substr(equals + 1)).second;
    PRIDE_CHECK(is_new, "--method-opt ", text.substr(0, equals), " is given twice");
  }
  return parsed;
}

}  // namespace pride::app
