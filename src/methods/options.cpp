// SPDX-License-Identifier: Apache-2.0
#include "methods/options.h"

#include <charconv>
#include <optional>

#include "pride/error.h"

namespace pride {
namespace {

// Nothing unless the whole text is a number.
template <typename T>
std::optional<T> parse(const std::string& text) {
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool all = error == std::errc() && end == text.data() + text.size();
  return all ? std::optional(value) : std::nullopt;
}

}  // namespace

double OptionValues::number(const std::string& name, double least, double most) const {
  const std::string& text = values_.at(name);
  const auto value = parse<double>(text);
  PRIDE_CHECK(value && *value >= least && *value <= most, method_, ": option ", name, " = '", text,
              "': must be a number from ", least, " to ", most);
  return *value;
}

std::int64_t OptionValues::whole(const std::string& name, std::int64_t least,
                                 std::int64_t most) const {
  const std::string& text = values_.at(name);
  const auto value = parse<std::int64_t>(text);
  PRIDE_CHECK(value && *value >= least && *value <= most, method_, ": option ", name, " = '", text,
              "': must be a whole number from ", least, " to ", most);
  return *value;
}

bool OptionValues::yes_no(const std::string& name) const {
  const std::string& text = values_.at(name);
  PRIDE_CHECK(text == "no" || text == "yes", method_, ": option ", name, " = '", text,
              "': choose no or yes");
  return text == "yes";
}

std::size_t OptionValues::word(const std::string& name,
                               std::initializer_list<std::string_view> words) const {
  const std::string& text = values_.at(name);
  std::string known;
  std::size_t i = 0;
  for (const std::string_view word : words) {
    if (text == word) return i;
    known += concat(i == 0 ? "" : i + 1 == words.size() ? " or " : ", ", word);
    ++i;
  }
  throw InvalidArgument(concat(method_, ": option ", name, " = '", text, "': choose ", known));
}

namespace methods {

std::string needs_host(const OptionValues& options, std::string_view option,
                       std::string_view remedy) {
  return concat(options.method(), ": option ", option, " is not supported on a device; ", remedy,
                "use tensors in host memory");
}

}  // namespace methods
}  // namespace pride
