// SPDX-License-Identifier: Apache-2.0
#include "methods/options.h"

#include <charconv>

#include "pride/error.h"

namespace pride::methods {

double number_option(const std::string& method, const MethodContext& ctx, const std::string& name,
                     double least, double most) {
  const std::string& text = ctx.options.at(name);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  PRIDE_CHECK(whole && value >= least && value <= most, method, ": option ", name, " = '", text,
              "': must be a number from ", least, " to ", most);
  return value;
}

bool yes_no_option(const std::string& method, const MethodContext& ctx, const std::string& name) {
  const std::string& text = ctx.options.at(name);
  PRIDE_CHECK(text == "no" || text == "yes", method, ": option ", name, " = '", text,
              "': choose no or yes");
  return text == "yes";
}

}  // namespace pride::methods
