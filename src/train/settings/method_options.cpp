// SPDX-License-Identifier: Apache-2.0
#include "train/settings/method_options.h"

#include <algorithm>

#include "pride/error.h"
#include "pride/registry.h"

namespace pride::train {

// An empty part is kept, also behind a last colon: it is refused as no key=value.
MethodChoice parse_method(const std::string& text) {
  std::size_t end = std::min(text.find(':'), text.size());
  MethodChoice choice{text.substr(0, end), {}};
  while (end < text.size()) {
    const std::size_t begin = end + 1;
    end = std::min(text.find(':', begin), text.size());
    choice.options.push_back(text.substr(begin, end - begin));
  }
  return choice;
}

std::map<std::string, std::string> checked_options(const MethodChoice& choice) {
  const MethodInfo info = method_info(choice.name, 1);
  std::string entry = choice.name;
  for (const std::string& option : choice.options) entry += ":" + option;
  auto options = parse_method_options(choice.options, concat("--methods ", entry));
  for (const auto& option : options) {
    const bool known = std::ranges::count(info.options, option.first, &MethodOption::name) > 0;
    PRIDE_CHECK(known, choice.name, ": no option '", option.first, "'");
  }
  return options;
}

void check_method(const std::string& text, int world) {
  const MethodChoice choice = parse_method(text);
  const Layout layout({{"w", {64}}});
  method_cost(choice.name, layout, {.options = checked_options(choice), .world = world});
}

std::map<std::string, std::string> parse_method_options(const std::vector<std::string>& texts,
                                                        const std::string& where) {
  std::map<std::string, std::string> parsed;
  for (const std::string& text : texts) {
    const std::size_t equals = text.find('=');
    PRIDE_CHECK(equals != std::string::npos && equals > 0, where, ": '", text,
                "' must be key=value");
    const bool is_new = parsed.emplace(text.substr(0, equals), text.substr(equals + 1)).second;
    PRIDE_CHECK(is_new, where, ": '", text.substr(0, equals), "' is given twice");
  }
  return parsed;
}

}  // namespace pride::train
